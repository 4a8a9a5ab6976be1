// A producer of its own, from nothing, by the steps of docs/OPERATIONS.md: enrolled, started with `muser producer`, used
// by a decoder, stopped, and started again.
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { heard, muser, startMuser } from './support/muser.js';
import {
  callCoordinator,
  enrollNode,
  joinDecoder,
  Node,
  type CoordinatorAccess,
  type DecoderReady,
} from './support/nodes.js';

const MODEL = fileURLToPath(new URL('../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
const PROMPT = `The backup tape is kept in the attic. ${'Nothing else is known. '.repeat(50)}\n\nWhere is the backup tape?`;

let folder: string;
let state: string;
let coordinator: Node<{ http: string; grpc: string }>;
let access: CoordinatorAccess;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-producer-'));
  state = join(folder, 'gb10');
  await mkdir(join(folder, 'coordinator'), { mode: 0o700 });
  coordinator = await Node.start('coordinator', join(folder, 'coordinator'), {});
  const token = await readFile(join(folder, 'coordinator', 'operator.token'), 'utf8');
  access = { ...coordinator.ready, token: token.trim() };
});

afterAll(async () => {
  await coordinator.stop();
  await rm(folder, { recursive: true, force: true });
});

interface Ready {
  address: string;
  nodeId: string;
  backend: string;
  pid: number;
}

/** Starts `muser producer` and reads its ready line. */
async function startProducer(): Promise<{ ready: Ready; stop: () => Promise<number | undefined> }> {
  const child = startMuser(['producer', '--json', '--backend', 'llama', '--state', state], { buffer: false });
  const told = heard(child.stderr, /ready: .+ at 127\.0\.0\.1:\d+; Ctrl-C stops it/);
  if (child.stdout === null || child.stdout === undefined) throw new Error('no output');
  const line = await new Promise<string>((resolve) =>
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve),
  );
  await told;
  const stop = async (): Promise<number | undefined> => {
    child.kill('SIGINT');
    return (await child).exitCode;
  };
  return { ready: JSON.parse(line) as Ready, stop };
}

describe('muser producer', { timeout: 180_000 }, () => {
  it('says what is missing before it is enrolled', async () => {
    const run = await muser(['producer', '--backend', 'llama', '--state', state]);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(/not enrolled.*\(NOT_FOUND\)\n.*docs\/OPERATIONS.md/);
  });

  it('prefills for a decoder of the same coordinator, and again after a restart', async () => {
    const nodeId = await enrollNode('gb10-producer', join(state, 'producer'), 'gb10', access);
    let producer = await startProducer();
    expect(producer.ready).toMatchObject({ nodeId, backend: 'llama' });
    const addresses = async (): Promise<unknown> =>
      callCoordinator(access, 'PATCH', `/api/nodes/${nodeId}`, { addresses: [producer.ready.address] });
    await addresses();
    const decoder: Node<DecoderReady> = await joinDecoder(access, join(folder, 'mac'), MODEL);
    try {
      const first = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(first.muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(first.text).toContain('attic');
      expect(await producer.stop()).toBe(0);

      producer = await startProducer();
      expect(producer.ready.nodeId).toBe(nodeId);
      await addresses();
      await expect
        .poll(async () => (await chat(decoder.ready.http, PROMPT, 'remote')).muser.prefill, { timeout: 60_000 })
        .toBe('remote');
    } finally {
      await producer.stop();
      await decoder.stop();
    }
  });
});
