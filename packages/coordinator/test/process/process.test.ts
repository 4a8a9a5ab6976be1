import { spawnSync } from 'node:child_process';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { floodInEveryWay } from '@muser/testing';
import { createIdentity, MAX_PEER_BURST_BYTES } from '@muser/transport';
import { describe, expect, it } from 'vitest';

import { has, StandInDecoder } from '../support/decoder.js';
import { temporaryFolder } from '../support/folders.js';
import { Operator } from '../support/operator.js';
import { CoordinatorProcess } from '../support/process.js';
import { StandInProducer } from '../support/producer.js';

async function stateFolder(): Promise<string> {
  return join(await temporaryFolder(), 'state');
}

describe('a coordinator process', () => {
  it('is the same after kill -9: CA, nodes and token; its nodes find it again', async () => {
    const stateDir = await stateFolder();
    const first = await CoordinatorProcess.launch({ stateDir });
    const before = await first.ready();
    const operator = await Operator.at(before, stateDir);
    const { nodeId, identity } = await operator.enroll('producer');
    const decoder = await operator.enroll('decoder');
    const producer = await StandInProducer.listen(identity);
    await operator.setAddresses(nodeId, [producer.target]);
    const stand = new StandInDecoder(decoder.identity, before.grpc, { coordinatorId: before.nodeId });
    await stand.list(has(nodeId));
    const end = stand.end();
    await first.kill();
    expect(['PEER_UNREACHABLE', 'CANCELLED']).toContain((await end).code);

    const grpcPort = Number(before.grpc.split(':').at(-1));
    const second = await CoordinatorProcess.launch({ stateDir, grpcPort });
    const after = await second.ready();
    expect(after).toMatchObject({ nodeId: before.nodeId, grpc: before.grpc });
    const again = new StandInDecoder(decoder.identity, after.grpc, { coordinatorId: before.nodeId });
    await again.list(has(nodeId));
    const operatorAgain = await Operator.at(after, stateDir);
    expect(operatorAgain.token).toBe(operator.token);
    expect((await operatorAgain.nodes()).map(({ role }) => role)).toEqual(['producer', 'decoder']);

    second.child.kill('SIGTERM');
    expect(await second.exit).toBe(0);
    expect(await readdir(stateDir)).toEqual(['ca', 'identity', 'operator.token', 'registry.sqlite']);
    expect(second.log).not.toContain(operator.token);
  });

  // promise: Floods of HTTP/2 frames at a coordinator's port end with their connections; decoders go on watching.
  // fault: open-to-anybody
  it.each([
    ['enrolled nodes', true],
    ['who has no certificate', false],
  ])('ends floods of frames by %s, and serves the others', { timeout: 180_000 }, async (_, enrolled) => {
    const stateDir = await stateFolder();
    const coordinator = await CoordinatorProcess.launch({ stateDir });
    const { grpc, nodeId } = await coordinator.ready();
    const operator = await Operator.at(await coordinator.ready(), stateDir);
    const { identity } = await operator.enroll('decoder');
    const watching = new StandInDecoder(identity, grpc, { coordinatorId: nodeId });
    await watching.list();
    const notEnded = await floodInEveryWay({
      port: Number(grpc.split(':').at(-1)),
      ca: identity.caPem,
      path: '/muser.v1.Placement/WatchProducers',
      identity: async () => (enrolled ? (await operator.enroll('decoder')).identity : null),
      limitBytes: 8 * MAX_PEER_BURST_BYTES,
    });
    expect(notEnded).toEqual([]);
    const { nodeId: producerId, identity: producerIdentity } = await operator.enroll('producer');
    const producer = await StandInProducer.listen(producerIdentity);
    await operator.setAddresses(producerId, [producer.target]);
    await watching.list(has(producerId));
    await watching.close();
  });

  it('has its state folder for itself', async () => {
    const stateDir = await stateFolder();
    const first = await CoordinatorProcess.launch({ stateDir });
    const { pid } = await first.ready();
    const second = await CoordinatorProcess.launch({ stateDir });
    expect(await second.failure()).toMatchObject({
      code: 'STATE_LOCKED',
      message: expect.stringContaining(String(pid)) as string,
      exit: 1,
    });
    first.child.kill('SIGTERM');
    expect(await first.exit).toBe(0);
    await (await CoordinatorProcess.launch({ stateDir })).ready();
  });

  it('leaves a damaged registry as it is and says what to do', async () => {
    const stateDir = await stateFolder();
    const first = await CoordinatorProcess.launch({ stateDir });
    await first.ready();
    first.child.kill('SIGTERM');
    await first.exit;
    const file = join(stateDir, 'registry.sqlite');
    const damaged = (await readFile(file)).fill(0x5a, 0, 8_192);
    await writeFile(file, damaged);
    expect(await (await CoordinatorProcess.launch({ stateDir })).failure()).toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('restore it from a backup') as string,
      exit: 2,
    });
    expect(await readFile(file)).toEqual(damaged);
  });

  it('ends when its parent is gone', async () => {
    const coordinator = await CoordinatorProcess.launch({ stateDir: await stateFolder(), exitWithParent: true });
    await coordinator.ready();
    coordinator.child.stdin.end();
    expect(await coordinator.exit).toBe(0);
  });

  it('names a wrong key of its configuration', async () => {
    const coordinator = await CoordinatorProcess.launch({ stateDir: await stateFolder(), grpcport: 1 });
    coordinator.firstLine.catch(() => undefined);
    expect(await coordinator.exit).toBe(2);
    expect(coordinator.log).toContain('unknown key "grpcport"');
  });

  it('says that a port is taken', async () => {
    const first = await (await CoordinatorProcess.launch({ stateDir: await stateFolder() })).ready();
    for (const key of ['grpc', 'http'] as const) {
      const port = Number(first[key].split(':').at(-1));
      const second = await CoordinatorProcess.launch({ stateDir: await stateFolder(), [`${key}Port`]: port });
      expect(await second.failure()).toMatchObject({ code: 'PORT_IN_USE', exit: 1 });
    }
  });

  it('serves the operator API on loopback only', async () => {
    const coordinator = await CoordinatorProcess.launch({ stateDir: await stateFolder(), httpHost: '0.0.0.0' });
    expect(await coordinator.failure()).toMatchObject({ code: 'CONFIG_INVALID', exit: 2 });
  });
});

/** A file system of its own for one process needs a mount namespace, which not every machine allows. */
const canMount = spawnSync('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']).status === 0;

describe.runIf(canMount)('a coordinator process on a bad disk', () => {
  async function onDisk(mountOptions: string, stateDir: string, prepare = ''): Promise<CoordinatorProcess> {
    const script = `mount -t tmpfs -o ${mountOptions} tmpfs "$0" && ${prepare} exec "$@"`;
    return await CoordinatorProcess.launch({ stateDir }, (command) => [
      'unshare',
      '-rm',
      'sh',
      '-c',
      script,
      stateDir,
      ...command,
    ]);
  }

  it('says that it cannot write at all', async () => {
    const stateDir = await temporaryFolder();
    const readOnly = await onDisk('size=1m,mode=700', stateDir, 'mount -o remount,ro "$0" &&');
    expect(await readOnly.failure()).toMatchObject({ code: 'UNAVAILABLE', exit: 1 });
    const tiny = await onDisk('size=4k,mode=700', stateDir);
    expect(await tiny.failure()).toMatchObject({
      code: 'UNAVAILABLE',
      message: expect.stringContaining(stateDir) as string,
      exit: 1,
    });
  });

  it('refuses changes when the disk is full, and goes on serving what it knows', async () => {
    const stateDir = await temporaryFolder();
    const coordinator = await onDisk('size=200k,mode=700', stateDir);
    const ready = await coordinator.ready();
    const operator = await Operator.at(ready, `/proc/${coordinator.child.pid}/root${stateDir}`);
    const request = await createIdentity(await temporaryFolder(), 'producer');
    const enroll = (name: string) =>
      operator.call('POST', '/api/nodes', { name, role: 'producer', addresses: [], request });
    let acknowledged = '';
    for (let number = 0; ; number += 1) {
      const { status, body } = await enroll(`name ${number}`);
      if (status !== 200) {
        expect([status, body]).toMatchObject([503, { error: { code: 'UNAVAILABLE' } }]);
        break;
      }
      acknowledged = `name ${number}`;
    }
    expect((await operator.nodes()).map(({ name }) => name)).toEqual([acknowledged]);
    expect((await fetch(`${ready.http}/health`)).status).toBe(200);
    coordinator.child.kill('SIGTERM');
    expect(await coordinator.exit).toBe(0);
  });
});
