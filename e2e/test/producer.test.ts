// A producer of its own, from nothing, by the steps of docs/OPERATIONS.md: enrolled, started with `muser producer`, used
// by a decoder, stopped, and started again.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { muser } from './support/muser.js';
import { enrollNode, joinDecoder, startCoordinator, type CoordinatorAccess } from './support/nodes.js';
import { Producer } from './support/producer.js';

const MODEL = fileURLToPath(new URL('../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
const PROMPT = `The backup tape is kept in the attic. ${'Nothing else is known. '.repeat(50)}\n\nWhere is the backup tape?`;

let folder: string;
let state: string;
let coordinator: { access: CoordinatorAccess; stop: () => Promise<void> };

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-producer-'));
  state = join(folder, 'gb10');
  coordinator = await startCoordinator(join(folder, 'coordinator'));
});

afterAll(async () => {
  await coordinator.stop();
  await rm(folder, { recursive: true, force: true });
});

describe('muser producer', { timeout: 180_000 }, () => {
  it('says what is missing before it is enrolled', async () => {
    const run = await muser(['producer', '--backend', 'llama', '--state', state]);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(/not enrolled.*\(NOT_FOUND\)\n.*docs\/OPERATIONS.md/);
  });

  it('prefills for a decoder of the same coordinator, and again after a restart', async () => {
    const { access } = coordinator;
    const nodeId = await enrollNode('gb10-producer', join(state, 'producer'), 'gb10', access);
    let producer = await Producer.start(state, '--backend', 'llama');
    expect(producer.ready).toMatchObject({ nodeId, backend: 'llama' });
    await producer.announce(access);
    const decoder = await joinDecoder(access, join(folder, 'mac'), MODEL);
    try {
      const first = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(first.muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(first.text).toContain('attic');
      expect(await producer.stop()).toBe(0);

      producer = await Producer.start(state, '--backend', 'llama');
      expect(producer.ready.nodeId).toBe(nodeId);
      await producer.announce(access);
      await expect
        .poll(async () => (await chat(decoder.ready.http, PROMPT, 'remote')).muser.prefill, { timeout: 60_000 })
        .toBe('remote');
    } finally {
      await producer.stop();
      await decoder.stop();
    }
  });
});
