import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
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
/** Every request that came but those for the list. */
let orders: string[];
/** What an order gets; null: the connection breaks. */
let answer: object | null;
beforeEach(async () => {
  state = await temporaryFolder();
  orders = [];
  answer = null;
  // Knows its nodes, and dies of every order unless a test wants something else.
  coordinator = createServer((request, response) => void serve(request, response));
  coordinator.listen(0, '127.0.0.1');
  await once(coordinator, 'listening');
  const url = `http://127.0.0.1:${(coordinator.address() as AddressInfo).port}`;
  await mkdir(join(state.path, 'coordinator'));
  await writeFile(join(state.path, 'coordinator', 'operator.token'), 'x\n');
  const endpoints = { decoder: url, coordinator: url, pids: { coordinator: 1, producer: 1, decoder: 1 } };
  await writeFile(join(state.path, 'endpoints.json'), JSON.stringify(endpoints));
});
async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET') {
    response.end(JSON.stringify({ nodes: [NODE, { ...NODE, nodeId: 'n0', name: 'former', state: 'revoked' }] }));
    return;
  }
  orders.push(`${request.method} ${request.url} ${await text(request)}`);
  if (answer === null) request.socket.destroy();
  else response.end(JSON.stringify(answer));
}
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

it.each([
  [['rotate', '--timeout', '7'], 'POST /api/nodes/n1/rotate {"deadlineMs":7000}', 'spark has a new certificate'],
  [['revoke'], 'DELETE /api/nodes/n1 ', 'spark is revoked'],
])('%j gives its order and says what became of it', async (words, order, said) => {
  answer = { node: NODE };
  const args = ['node', ...words, '--state', state.path];
  expect(await runCli([...args, 'spark'])).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining(said) as string,
  });
  expect(orders).toEqual([order]);
  const { stdout } = await runCli([...args, '--json', 'n1']);
  expect(JSON.parse(stdout)).toEqual(answer);
});

it.each(['rotate', 'revoke'])('%s gives no order for a node that is not there', async (word) => {
  for (const [name, why] of [
    ['nobody', 'there is no node "nobody"'],
    ['former', 'the node "former" was revoked'],
  ] as const) {
    const run = await runCli(['node', word, '--state', state.path, name]);
    expect(run).toMatchObject({ exitCode: 1, stdout: '', stderr: expect.stringContaining(why) as string });
  }
  expect(orders).toEqual([]);
});

it.each(['rotate', 'revoke'])('%s fails when the coordinator dies of it', async (word) => {
  const run = await runCli(['node', word, '--state', state.path, 'spark']);
  expect(run).toMatchObject({ exitCode: 3, stdout: '' });
  expect(run.stderr).toMatch(/no answer from the coordinator .*\(PEER_UNREACHABLE\)/);
});

it('a coordinator that is gone: stop the rest of the system before it is started again; no order stands', async () => {
  coordinator.close();
  await once(coordinator, 'close');
  for (const args of [['list'], ['pause', 'spark'], ['resume', 'spark'], ['rotate', 'spark'], ['revoke', 'spark']]) {
    const run = await runCli(['node', ...args, '--state', state.path]);
    expect(run).toMatchObject({ exitCode: 3, stdout: '' });
    expect(run.stderr).toContain('Stop `muser dev` where it still runs, and start it again.');
    expect(run.stderr).not.toContain('may stand');
  }
});
