// Nodes that are revoked, and certificates that are renewed, while a transfer runs, with real processes.
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { X509Certificate } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chat, type Answer } from './support/chat.js';
import { inCheckout } from './support/checkout.js';
import { Cleanups } from './support/cleanups.js';
import { eventually } from './support/muser.js';
import {
  announce,
  callCoordinator,
  enrollNode,
  joinDecoder,
  Node,
  producersReady,
  startCoordinator,
  type CoordinatorAccess,
  type DecoderReady,
  type ProducerReady,
} from './support/nodes.js';

const MODEL = inCheckout('models/muse-nano/muse-nano-q8_0.gguf');
const PROMPT = `The backup tape is kept in the attic. ${'Nothing else is known. '.repeat(90)}\n\nWhere is the backup tape?`;
/** Slow enough that a transfer of the prompt takes a minute, if nobody ends it. */
const SLOW = 10;
/** A transfer of several seconds, for what happens meanwhile. */
const BRISK = 150;

const cleanups = new Cleanups();
let folder: string;
let coordinator: CoordinatorAccess;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-trust-'));
  cleanups.add(() => rm(folder, { recursive: true, force: true }));
  const started = await startCoordinator(join(folder, 'coordinator'));
  cleanups.add(() => started.stop());
  coordinator = started.access;
});
afterAll(() => cleanups.run());

interface System {
  producer: Node<ProducerReady>;
  producerFolder: string;
  decoder: Node<DecoderReady>;
  decoderFolder: string;
  stop: () => Promise<void>;
}

/** A producer and a decoder of their own; they are revoked afterwards, so that the next ones are alone. */
async function start(name: string, tokensPerSecond: number): Promise<System> {
  const [producerFolder, decoderFolder] = [join(folder, `${name}-gb10`), join(folder, `${name}-mac`)];
  await mkdir(producerFolder, { mode: 0o700 });
  await enrollNode('gb10-producer', producerFolder, name, coordinator);
  const settings = { model: MODEL, backend: 'llama', threads: 1, chunkTokens: 32, pacing: tokensPerSecond };
  const producer = await Node.start<ProducerReady>('gb10-producer', producerFolder, settings);
  await announce(coordinator, producer.ready.nodeId, [producer.ready.address]);
  const decoder = await joinDecoder(coordinator, decoderFolder, MODEL);
  const stop = async (): Promise<void> => {
    for (const { ready } of [producer, decoder]) await revoke(ready.nodeId);
    await Promise.all([producer.kill(), decoder.kill()]);
  };
  return { producer, producerFolder, decoder, decoderFolder, stop };
}

const revoke = (nodeId: string): Promise<unknown> => callCoordinator(coordinator, 'DELETE', `/api/nodes/${nodeId}`);

/** An answer whose transfer has begun and brought bytes. */
async function asked({ decoder }: System): Promise<{ answer: Promise<Answer> }> {
  let begun: () => void = () => undefined;
  const hasBegun = new Promise<void>((resolve) => (begun = resolve));
  const onProgress = ({ bytes = 0 }: { bytes?: number }): void => {
    if (bytes > 0) begun();
  };
  const answer = chat(decoder.ready.http, PROMPT, 'remote', { onProgress });
  await Promise.race([hasBegun, answer]);
  return { answer };
}

const log = (of: string): Promise<string> => readFile(join(of, 'log'), 'utf8');

/** The serial number that a producer presents to a new connection. */
async function presentedSerial({ producer, decoderFolder }: System): Promise<string> {
  const identity = join(decoderFolder, 'identity');
  const keys = JSON.parse(await readFile(join(identity, 'keys.json'), 'utf8')) as { tlsKeyPem: string };
  const bundle = JSON.parse(await readFile(join(identity, 'bundle.json'), 'utf8')) as Record<string, string>;
  const [host = '', port = ''] = producer.ready.address.split(':');
  const { tlsKeyPem: key = keys.tlsKeyPem, certificatePem: cert, caPem: ca } = bundle;
  const options = { host, port: Number(port), key, cert, ca, ALPNProtocols: ['h2'] };
  return new Promise((resolve, reject) => {
    const socket = connect({ ...options, checkServerIdentity: () => undefined }, () => {
      resolve(socket.getPeerX509Certificate()?.serialNumber ?? '');
      socket.destroy();
    }).on('error', reject);
  });
}

async function storedSerial(stateDir: string): Promise<string> {
  const bundle = await readFile(join(stateDir, 'identity', 'bundle.json'), 'utf8');
  return new X509Certificate((JSON.parse(bundle) as { certificatePem: string }).certificatePem).serialNumber;
}

describe('while a transfer runs', { timeout: 180_000 }, () => {
  // promise: Certificates and TLS keys of both sides are renewed while a transfer runs, and it is completed.
  it('both sides get new certificates, it seals, and new connections use them', async () => {
    const system = await start('renewed', BRISK);
    try {
      const before = [await storedSerial(system.producerFolder), await storedSerial(system.decoderFolder)];
      const { answer } = await asked(system);
      const rotate = ({ ready }: Node<{ nodeId: string }>): Promise<unknown> =>
        callCoordinator(coordinator, 'POST', `/api/nodes/${ready.nodeId}/rotate`, {});
      await Promise.all([rotate(system.producer), rotate(system.decoder)]);
      await eventually(
        'the decoder has its certificate',
        async () => (await storedSerial(system.decoderFolder)) !== before[1],
      );
      const { muser, text } = await answer;
      expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(text).toContain('attic');
      const serial = await presentedSerial(system);
      expect(serial).toBe(await storedSerial(system.producerFolder));
      expect(serial).not.toBe(before[0]);
      // Another transfer, on a new connection with the new certificates.
      const again = await chat(system.decoder.ready.http, `Good day. ${PROMPT}`, 'remote');
      expect(again.muser).toMatchObject({ prefill: 'remote', fallback: null });
    } finally {
      await system.stop();
    }
  });

  // promise: A decoder that is revoked loses the transfer that runs, and gets no other; it answers by itself.
  it('its decoder is revoked: it ends there, and the decoder answers by itself', async () => {
    const system = await start('revoked-decoder', SLOW);
    try {
      const { answer } = await asked(system);
      await revoke(system.decoder.ready.nodeId);
      const { muser, text } = await answer;
      expect(text).toContain('attic');
      expect(muser).toMatchObject({ prefill: expect.not.stringMatching(/^remote$/) as string });
      expect(muser.fallback?.code).toBe('NODE_REVOKED');
      await eventually('the producer has ended it', async () =>
        (await log(system.producerFolder)).includes('"code":"NODE_REVOKED"'),
      );
      const second = await chat(system.decoder.ready.http, `Good day. ${PROMPT}`, 'remote');
      expect(second.muser.fallback).not.toBeNull();
      expect(second.text).toContain('attic');
    } finally {
      await system.stop();
    }
  });

  // promise: A producer that is revoked loses the transfers that run there, and the decoder goes on by itself.
  it('its producer is revoked: the decoder leaves it, and answers by itself', async () => {
    const system = await start('revoked-producer', SLOW);
    try {
      const { answer } = await asked(system);
      await revoke(system.producer.ready.nodeId);
      const { muser, text } = await answer;
      expect(text).toContain('attic');
      expect(muser.fallback?.code).toBe('NODE_REVOKED');
    } finally {
      await system.stop();
    }
  });
});

// promise: A new identity key is enrolled beside the old one of the same machine, so that nothing that runs is lost when they change.
it('an old and a new identity of one machine work side by side', { timeout: 180_000 }, async () => {
  const system = await start('machine', BRISK);
  const newFolder = join(folder, 'machine-new');
  await mkdir(newFolder, { mode: 0o700 });
  await enrollNode('gb10-producer', newFolder, 'machine-new', coordinator);
  const settings = { model: MODEL, backend: 'llama', threads: 1, chunkTokens: 32, pacing: BRISK };
  const renewed = await Node.start<ProducerReady>('gb10-producer', newFolder, settings);
  try {
    expect(renewed.ready.nodeId).not.toBe(system.producer.ready.nodeId);
    await announce(coordinator, renewed.ready.nodeId, [renewed.ready.address]);
    await producersReady(system.decoder.ready.http, 2);
    const { answer } = await asked(system);
    // What runs under the old key is drained; then it is revoked, and the new one takes the next request.
    const { muser } = await answer;
    expect(muser).toMatchObject({ prefill: 'remote', fallback: null });
    await revoke(system.producer.ready.nodeId);
    const next = await chat(system.decoder.ready.http, `Good day. ${PROMPT}`, 'remote');
    expect(next.muser).toMatchObject({ prefill: 'remote', fallback: null });
  } finally {
    await renewed.kill();
    await revoke(renewed.ready.nodeId);
    await system.stop();
  }
});
