// Real vLLM on the CPU is unloaded, by an operator and because it is idle, and loaded again. vLLM starts three times.
import { execFileSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { processesBelow } from '@muser/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { Cleanups } from './support/cleanups.js';
import { eventually, isAlive } from './support/muser.js';
import {
  callCoordinator,
  enrollNode,
  joinDecoder,
  Node,
  startCoordinator,
  type CoordinatorAccess,
  type DecoderReady,
} from './support/nodes.js';

const inRepository = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));

/** Importing vLLM alone takes a minute on a busy machine with two cores. */
const LIMIT_MS = 600_000;
const IDLE_UNLOAD_MS = 5_000;
const PROMPT = `The backup tape is kept in the attic. ${'Nothing else is known. '.repeat(50)}\n\nWhere is the backup tape?`;

interface NodeView {
  state: string;
  modelLoaded: boolean | null;
}

const cleanups = new Cleanups();
let access: CoordinatorAccess;
let producer: Node<{ pid: number; address: string }>;
let decoder: Node<DecoderReady>;
let nodeId: string;

beforeAll(async () => {
  execFileSync(process.execPath, [inRepository('scripts/vllm-env.mjs'), '--quiet'], { stdio: 'inherit' });
  const folder = await mkdtemp(join(tmpdir(), 'muser-vllm-pause-'));
  cleanups.add(() => rm(folder, { recursive: true, force: true }));
  const coordinator = await startCoordinator(join(folder, 'coordinator'));
  cleanups.add(() => coordinator.stop());
  ({ access } = coordinator);
  nodeId = await enrollNode('gb10-producer', join(folder, 'producer'), 'spark', access);
  producer = await Node.start('gb10-producer', join(folder, 'producer'), {
    backend: 'vllm',
    model: inRepository('models/muse-nano/hf'),
    threads: 1,
    drainMs: 1_000,
    vllm: { idleUnloadMs: IDLE_UNLOAD_MS },
  });
  cleanups.add(() => producer.stop());
  await callCoordinator(access, 'PATCH', `/api/nodes/${nodeId}`, { addresses: [producer.ready.address] });
  decoder = await joinDecoder(access, join(folder, 'mac'), inRepository('models/muse-nano/muse-nano-q8_0.gguf'));
  cleanups.add(() => decoder.stop());
}, LIMIT_MS);

afterAll(() => cleanups.run(), 120_000);

async function view(): Promise<NodeView> {
  const { http, token } = access;
  const response = await fetch(new URL('/api/nodes', http), { headers: { authorization: `Bearer ${token}` } });
  const { nodes } = (await response.json()) as { nodes: (NodeView & { nodeId: string })[] };
  return nodes.find((node) => node.nodeId === nodeId) as NodeView;
}

const order = (word: 'pause' | 'resume'): Promise<unknown> =>
  callCoordinator(access, 'POST', `/api/nodes/${nodeId}/${word}`, {});

/** The worker and all that it has started. */
const workers = (): number[] => processesBelow(producer.ready.pid).filter(isAlive);

describe('a producer on real vLLM', () => {
  it(
    'frees the memory of its worker when it is paused, and answers again when it is resumed',
    { timeout: LIMIT_MS },
    async () => {
      await order('pause');
      expect(workers()).toEqual([]);
      expect(await view()).toMatchObject({ state: 'paused', modelLoaded: false });
      const local = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(local.muser).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' } });
      expect(local.text).toContain('attic');

      await order('resume');
      expect(await view()).toMatchObject({ state: 'healthy', modelLoaded: true });
      const remote = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(remote.muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(remote.text).toBe(local.text);
    },
  );

  it('unloads itself when it is idle, and loads again for the next question', { timeout: LIMIT_MS }, async () => {
    await eventually('it is unloaded', async () => (await view()).modelLoaded === false);
    await eventually('its worker is gone', () => workers().length === 0);
    expect(await view()).toMatchObject({ state: 'healthy' });
    // Whether it waits for the load or is answered locally depends on how long the load takes.
    const first = await chat(decoder.ready.http, PROMPT, 'remote');
    expect(first.text).toContain('attic');
    await eventually('a question is prefilled there', async () => {
      const { text, muser } = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(text).toContain('attic');
      return muser.prefill === 'remote';
    });
    expect(workers()).not.toEqual([]);
  });
});
