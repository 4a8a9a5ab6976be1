// Machines whose clocks differ, with real processes under libfaketime (apt install faketime). 5 minutes are forgiven.
import { spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { inCheckout } from './support/checkout.js';
import { Cleanups } from './support/cleanups.js';
import { eventually } from './support/muser.js';
import {
  announce,
  enrollNode,
  Node,
  producersReady,
  startCoordinator,
  type CoordinatorAccess,
  type DecoderReady,
  type Launch,
  type ProducerReady,
} from './support/nodes.js';

const MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
const PROMPT = `The backup tape is kept in the attic. ${'Nothing else is known. '.repeat(20)}\n\nWhere is the backup tape?`;
const isThere = spawnSync('faketime', ['--version']).status === 0;
if (!isThere) process.stderr.write('clocks.slow.test.ts needs faketime: apt install faketime\n');

/** Another wall clock; what measures durations stays as it is. */
const shifted = (minutes: number): Launch => ({
  prefix: ['faketime', '-f', `${minutes < 0 ? '-' : '+'}${Math.abs(minutes)}m`],
  env: { FAKETIME_DONT_FAKE_MONOTONIC: '1', DONT_FAKE_MONOTONIC: '1' },
});

const cleanups = new Cleanups();
let folder: string;
let coordinator: CoordinatorAccess;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-clocks-'));
  cleanups.add(() => rm(folder, { recursive: true, force: true }));
  const started = await startCoordinator(join(folder, 'coordinator'));
  cleanups.add(() => started.stop());
  coordinator = started.access;
});
afterAll(() => cleanups.run());

async function startProducer(name: string, minutes: number): Promise<Node<ProducerReady>> {
  const state = join(folder, name);
  await mkdir(state, { mode: 0o700, recursive: true });
  await enrollNode('gb10-producer', state, name, coordinator);
  const settings = { model: MODEL, backend: 'llama', threads: 1 };
  const producer = await Node.start<ProducerReady>('gb10-producer', state, settings, shifted(minutes));
  await announce(coordinator, producer.ready.nodeId, [producer.ready.address]);
  return producer;
}

async function startDecoder(name: string, minutes: number): Promise<Node<DecoderReady>> {
  const state = join(folder, name);
  await mkdir(state, { mode: 0o700, recursive: true });
  await enrollNode('mac-decoder', state, name, coordinator);
  const settings = { model: MODEL, threads: 1, coordinator: coordinator.grpc, drainMs: 1_000 };
  return Node.start<DecoderReady>('mac-decoder', state, settings, shifted(minutes));
}

interface NodeView {
  nodeId: string;
  state: string;
  reason: { code: string; message: string } | null;
}

async function nodeView(nodeId: string): Promise<NodeView | undefined> {
  const headers = { authorization: `Bearer ${coordinator.token}` };
  const response = await fetch(new URL('/api/nodes', coordinator.http), { headers });
  return ((await response.json()) as { nodes: NodeView[] }).nodes.find((node) => node.nodeId === nodeId);
}

describe.skipIf(!isThere)('clocks that differ', { timeout: 180_000 }, () => {
  // promise: Clocks that differ from the coordinator's by up to five minutes, in either direction, change nothing.
  it.each([
    [-4, 4],
    [4, -4],
  ])('by %d and %d minutes: the hand-off works', async (ofProducer, ofDecoder) => {
    const producer = await startProducer(`gb10${ofProducer}`, ofProducer);
    const decoder = await startDecoder(`mac${ofDecoder}`, ofDecoder);
    try {
      await producersReady(decoder.ready.http, 1);
      const { muser, text } = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(text).toContain('attic');
    } finally {
      await Promise.all([producer.kill(), decoder.kill()]);
    }
  });

  // promise: A producer whose clock is further ahead is named with its clock, and decoders answer by themselves.
  it('by 20 minutes ahead: the coordinator names the clock, and the decoder answers by itself', async () => {
    const producer = await startProducer('gb10-ahead', 20);
    const decoder = await startDecoder('mac', 0);
    try {
      await eventually('the producer is in error', async () => {
        return (await nodeView(producer.ready.nodeId))?.state === 'error';
      });
      const view = await nodeView(producer.ready.nodeId);
      expect(view?.reason?.code).toBe('CLOCK_SKEW');
      expect(view?.reason?.message).toMatch(/is 1\d\d\d s ahead of the coordinator's, 300 s are allowed/);
      const { muser, text } = await chat(decoder.ready.http, PROMPT, 'remote');
      expect(muser).toMatchObject({ prefill: 'local', fallback: { code: 'NO_PRODUCER' } });
      expect(text).toContain('attic');
    } finally {
      await Promise.all([producer.kill(), decoder.kill()]);
    }
  });

  // promise: A node whose clock is further behind than its certificate begins says so when it starts.
  it('by 20 minutes behind: a node that was just enrolled does not start, and names its clock', async () => {
    await expect(startProducer('gb10-behind', -20)).rejects.toThrow(/CLOCK_SKEW.*this machine's clock says/);
    await expect(startDecoder('mac-20', -20)).rejects.toThrow(/CLOCK_SKEW.*this machine's clock says/);
  });
});
