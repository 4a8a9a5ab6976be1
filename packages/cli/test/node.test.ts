import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { runCli } from './support/cli.js';
import { temporaryFolder } from './support/models.js';

const NODE = {
  nodeId: 'n1',
  name: 'spark',
  role: 'producer',
  addresses: [],
  state: 'paused',
  since: null,
  lastSeen: null,
  load: null,
  model: null,
  backend: null,
  modelLoaded: false,
};

let state: { path: string; remove: () => Promise<void> };
let coordinator: Server;
beforeEach(async () => {
  state = await temporaryFolder();
  // Knows its nodes, and dies of every order.
  coordinator = createServer((request, response) => {
    if (request.method === 'GET') response.end(JSON.stringify({ nodes: [NODE] }));
    else request.socket.destroy();
  });
  coordinator.listen(0, '127.0.0.1');
  await once(coordinator, 'listening');
  const url = `http://127.0.0.1:${(coordinator.address() as AddressInfo).port}`;
  await mkdir(join(state.path, 'coordinator'));
  await writeFile(join(state.path, 'coordinator', 'operator.token'), 'x\n');
  const endpoints = { decoder: url, coordinator: url, pids: { coordinator: 1, producer: 1, decoder: 1 } };
  await writeFile(join(state.path, 'endpoints.json'), JSON.stringify(endpoints));
});
afterEach(async () => {
  coordinator.close();
  await state.remove();
});

it.each([
  ['pause', 'pauses'],
  ['resume', 'resumes'],
])('a %s that is cut off says that the order may stand', async (word, verb) => {
  const run = await runCli(['node', word, '--state', state.path, 'spark']);
  expect(run).toMatchObject({ exitCode: 3, stdout: '' });
  expect(run.stderr).toContain(`the order may stand: the producer ${verb} all the same`);
  expect(run.stderr).toMatch(/no answer from the coordinator .*\(PEER_UNREACHABLE\)/);
});

it('a coordinator that is gone: stop the rest of the system before it is started again; no order stands', async () => {
  coordinator.close();
  await once(coordinator, 'close');
  for (const args of [['list'], ['pause', 'spark'], ['resume', 'spark']]) {
    const run = await runCli(['node', ...args, '--state', state.path]);
    expect(run).toMatchObject({ exitCode: 3, stdout: '' });
    expect(run.stderr).toContain('Stop `muser dev` where it still runs, and start it again.');
    expect(run.stderr).not.toContain('may stand');
  }
});
