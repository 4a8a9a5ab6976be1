import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  encodePrefillRequest,
  type NodeStatus,
  type PrefillRequest,
  requestDigestOf,
  rowBytesOf,
  sealTicket,
  TransferReceiver,
  verifyingKey,
} from '@muser/protocol';
import { cpuSeconds, TestAuthority, type TestIdentity, treeCpuSeconds, writeIdentityFolder } from '@muser/testing';
import { hashPayload, PeerClient } from '@muser/transport';

import { figure, median } from './statistics.js';
import { ENGINE, PlainEngine, ProducerProcess, type SealedTransfer, VLLM_PYTHON } from './vllm-engines.js';

const PROMPT_TOKENS = 3_000;
/** Each is A B B A: with the connector, without, without, with. */
const ROUNDS = 6;
const DEADLINE_MS = 120_000;
const FIRST_ORDINARY_TOKEN = 300;
/** Beyond one window. */
const REQUEST_STAGING_BYTES = 32 << 20;

interface Bench {
  readonly authority: TestAuthority;
  readonly producer: ProducerProcess;
  readonly plain: PlainEngine;
  readonly client: PeerClient;
  readonly decoder: TestIdentity;
  readonly identity: TestIdentity;
  readonly status: NodeStatus;
}

/** What one prefill took. Processor time is that of the engine's processes; `rest` that of producer and reader. */
interface Cost {
  readonly computeMs: number;
  readonly untilReadMs: number;
  readonly engineCpuSeconds: number;
  readonly restCpuSeconds: number;
}

/**
 * Prefills of real vLLM whose rows the whole producer sends to a reader that verifies them, over gRPC with mutual TLS,
 * against the same vLLM without the connector, in turns. All share the machine's cores, so processor time is told too.
 */
export async function vllmBenchmark(): Promise<object> {
  if (!existsSync(VLLM_PYTHON)) return { skipped: 'vLLM is not installed: npm run vllm' };
  const stateDir = await mkdtemp(join(tmpdir(), 'muser-bench-'));
  const stops: (() => unknown)[] = [() => rm(stateDir, { recursive: true })];
  try {
    return await measure(await start(stateDir, stops));
  } finally {
    for (const stop of stops.reverse()) await stop();
  }
}

async function start(stateDir: string, stops: (() => unknown)[]): Promise<Bench> {
  const authority = await TestAuthority.create();
  const identity = await authority.identity('producer');
  await writeIdentityFolder(join(stateDir, 'identity'), identity);
  const producer = await ProducerProcess.start(stateDir);
  stops.push(() => producer.stop());
  const plain = await PlainEngine.start();
  stops.push(() => plain.stop());
  const expect = { role: 'producer', nodeId: identity.nodeId } as const;
  const decoder = await authority.identity('decoder');
  const client = PeerClient.connect({ identity: decoder, target: producer.address, expect });
  stops.push(() => client.close());
  const watcher = PeerClient.connect({
    identity: await authority.identity('coordinator'),
    target: producer.address,
    expect,
  });
  try {
    for await (const status of watcher.watchNode({ protocolVersion: 1, intervalMs: 1_000 })) {
      return { authority, producer, plain, client, decoder, identity, status };
    }
    throw new Error('the producer told no status');
  } finally {
    watcher.close();
  }
}

async function measure(bench: Bench): Promise<object> {
  const costs: Record<'on' | 'off', Cost[]> = { on: [], off: [] };
  const sealed: SealedTransfer[] = [];
  // Round 0 warms both ends up and does not count.
  for (let round = 0; round <= ROUNDS; round += 1) {
    for (const [turn, way] of (['on', 'off', 'off', 'on'] as const).entries()) {
      const tokens = promptOf(bench, 2 * round + (turn < 2 ? 0 : 1));
      const cost = way === 'on' ? await withConnector(bench, tokens, sealed) : await without(bench, tokens);
      if (round > 0) costs[way].push(cost);
    }
  }
  return figuresOf(costs, sealed.slice(2), await bench.producer.stagedBytesPeak(), bench);
}

async function withConnector(bench: Bench, tokens: Uint32Array, sealed: SealedTransfer[]): Promise<Cost> {
  const own = process.cpuUsage();
  const before = cpuOf(bench.producer);
  const startedMs = performance.now();
  await receive(bench, tokens);
  const untilReadMs = performance.now() - startedMs;
  const [outcome] = await bench.producer.takeSealed(1);
  if (outcome === undefined) throw new Error('the producer logged no end of the transfer');
  sealed.push(outcome);
  const after = cpuOf(bench.producer);
  const { user, system } = process.cpuUsage(own);
  return {
    computeMs: outcome.prefillMs,
    untilReadMs,
    engineCpuSeconds: after.engine - before.engine,
    restCpuSeconds: after.own - before.own + (user + system) / 1e6,
  };
}

/** The producer's own processor time, and that of the processes that it has started. */
function cpuOf({ pid }: ProducerProcess): { own: number; engine: number } {
  const own = cpuSeconds(pid);
  return { own, engine: treeCpuSeconds(pid) - own };
}

async function without({ plain }: Bench, tokens: Uint32Array): Promise<Cost> {
  const before = treeCpuSeconds(plain.pid);
  const computeMs = await plain.prefillMs(tokens);
  return {
    computeMs,
    untilReadMs: computeMs,
    engineCpuSeconds: treeCpuSeconds(plain.pid) - before,
    restCpuSeconds: 0,
  };
}

/** Reads and verifies a whole transfer, and drops its rows. */
async function receive(bench: Bench, tokens: Uint32Array): Promise<void> {
  const request = requestFor(bench, tokens);
  const bytes = encodePrefillRequest(request);
  const { identity, status } = bench;
  const receiver = new TransferReceiver({
    nonce: request.nonce,
    requestDigest: requestDigestOf(bytes),
    expect: {
      producerId: identity.nodeId,
      producerKey: verifyingKey(identity.signingKey.publicKey),
      fingerprint: status.model.fingerprint,
      geometry: status.geometry,
      wireTypes: request.wireTypes,
      firstToken: 0,
      endToken: tokens.length - 1,
    },
    hash: hashPayload,
  });
  for await (const message of bench.client.prefill(bytes)) await receiver.accept(message);
  receiver.end();
}

function requestFor({ authority, decoder, identity, status }: Bench, tokens: Uint32Array): PrefillRequest {
  const decoderModel = new Uint8Array(32).fill(9);
  const { fingerprint, modelDigest: producerModel } = status.model;
  const ticket = {
    ticketId: randomBytes(16),
    decoderId: decoder.nodeId,
    producerId: identity.nodeId,
    fingerprint,
    decoderModel,
    producerModel,
    maxPromptTokens: ENGINE.maxPromptTokens,
    issuedAtMs: Date.now(),
    expiresAtMs: Date.now() + 10 * 60_000,
  };
  return {
    protocolVersion: 1,
    nonce: randomBytes(16),
    ticket: sealTicket(ticket, authority.coordinatorKey),
    fingerprint,
    decoderModel,
    tokens,
    heldTokens: 0,
    heldDigest: new Uint8Array(0),
    wireTypes: ['bf16'],
    deadlineMs: DEADLINE_MS,
    chunkTokens: 0,
  };
}

/** Tokens that say nothing, new in every turn: what was prefilled before comes from vLLM's cache. */
function promptOf({ status }: Bench, seed: number): Uint32Array {
  let state = 0x9e3779b9 ^ seed;
  const usable = status.geometry.vocabularySize - FIRST_ORDINARY_TOKEN;
  return Uint32Array.from({ length: PROMPT_TOKENS }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return FIRST_ORDINARY_TOKEN + (state % usable);
  });
}

function figuresOf(
  costs: Record<'on' | 'off', Cost[]>,
  sealed: readonly SealedTransfer[],
  stagedBytesPeak: number,
  { status: { geometry } }: Bench,
): object {
  const middle = (way: 'on' | 'off', of: keyof Cost) => median(costs[way].map((cost) => cost[of]));
  const sum = (way: 'on' | 'off', of: keyof Cost) => costs[way].reduce((total, cost) => total + cost[of], 0);
  const perSecond = (ms: number) => figure((1000 * (PROMPT_TOKENS - 1)) / ms);
  const windows = geometry.layers.filter((kind) => kind === 'window').length;
  return {
    ...{ promptTokens: PROMPT_TOKENS, chunkTokens: ENGINE.chunkTokens, engineThreads: ENGINE.threads, rounds: ROUNDS },
    prefillTokensPerSecond: { on: perSecond(middle('on', 'computeMs')), off: perSecond(middle('off', 'computeMs')) },
    onAgainstOff: figure(middle('off', 'computeMs') / middle('on', 'computeMs')),
    goal: 0.97,
    untilReadAgainstOff: figure(middle('off', 'untilReadMs') / middle('on', 'untilReadMs')),
    // The kernel counts hundredths of a second, so all rounds together.
    engineCpuOnAgainstOff: figure(sum('off', 'engineCpuSeconds') / sum('on', 'engineCpuSeconds')),
    cpuSecondsPerPrompt: {
      engineOn: figure(sum('on', 'engineCpuSeconds') / costs.on.length),
      engineOff: figure(sum('off', 'engineCpuSeconds') / costs.off.length),
      producerAndReader: figure(sum('on', 'restCpuSeconds') / costs.on.length),
    },
    payloadBytes: median(sealed.map(({ payloadBytes }) => payloadBytes)),
    chunkEndToLastByteMs: {
      mean: figure(median(sealed.map(({ chunkSendMs }) => chunkSendMs))),
      slowest: figure(Math.max(...sealed.map(({ slowestChunkSendMs }) => slowestChunkSendMs))),
    },
    stagedBytesPeak,
    stagedBytesGoal: 2 * windows * geometry.windowTokens * rowBytesOf(geometry) + REQUEST_STAGING_BYTES,
  };
}
