import { mutated, Random } from '@muser/testing';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  decodeCertificateInstalled,
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeIssuedCertificate,
  decodeNodeStatus,
  decodeProducerList,
  decodeRevokedNodes,
  decodeRevokedNodesTaken,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
} from '../src/codec.js';
import { isErrorCode, MuserError } from '../src/errors.js';
import { SCHEMAS } from '../src/messages.js';
import { decodePrefillRequest, encodePrefillRequest, tokensDigest } from '../src/request.js';
import type { TransferEvent } from '../src/transfer/receiver.js';
import type { Schema } from '../src/wire/schema.js';
import { arbitraries } from './support/arbitraries.js';
import { fingerprint, messagesOf, newReceiver, nonce, standardCase } from './support/transfers.js';

const RUNS = 10_000;

/** How a message is changed: the seed of its changes. */
const changes = fc.nat();
const changed = (message: Buffer, seed: number, others: readonly Buffer[] = []): Buffer =>
  mutated(new Random(seed), message, others);

function expectMuserError(thrown: unknown): void {
  expect(thrown).toBeInstanceOf(MuserError);
  expect(isErrorCode((thrown as MuserError).code)).toBe(true);
}

/** Runs a decoder; only a MuserError may come out of it, or a value. */
function attempt(decode: () => unknown): void {
  try {
    decode();
  } catch (thrown) {
    expectMuserError(thrown);
  }
}

const tokens = Uint32Array.from({ length: 50 }, (_, i) => i);
const request = encodePrefillRequest({
  protocolVersion: 1,
  nonce,
  ticket: Buffer.alloc(200, 1),
  fingerprint,
  decoderModel: Buffer.alloc(32, 2),
  tokens,
  heldTokens: 20,
  heldDigest: tokensDigest(tokens, 20),
  wireTypes: ['f16'],
  deadlineMs: 1000,
  chunkTokens: 0,
});
const short = { ...standardCase, endToken: 12, chunks: [5, 4], skipped: new Set<number>(), maxPayloadBytes: 1024 };
const transfer = messagesOf(short);
const [begin = Buffer.alloc(0), , ...afterProgress] = transfer;
const content = (event: TransferEvent): string =>
  JSON.stringify(event, (_, value: unknown) =>
    value instanceof Uint8Array ? Buffer.from(value).toString('hex') : value,
  );

describe('the producer’s end', () => {
  it(`answers ${RUNS} mutated and random requests with a MuserError or a valid request`, () => {
    const input = fc.oneof(
      { weight: 4, arbitrary: changes.map((seed) => changed(request, seed)) },
      { weight: 1, arbitrary: fc.uint8Array({ maxLength: 300 }) },
    );
    fc.assert(
      fc.property(input, (bytes) => {
        attempt(() => {
          const decoded = decodePrefillRequest(bytes);
          expect(decoded.heldTokens).toBeLessThan(decoded.tokens.length - 1);
          encodePrefillRequest(decoded);
        });
      }),
      { numRuns: RUNS },
    );
  });
});

describe('the decoder’s end', () => {
  // promise: A message with changed bytes is never taken for another one than that which was signed.
  it(`never takes one of ${RUNS} mutated messages for another than the one that was signed`, async () => {
    const expected: string[] = [];
    const pristine = newReceiver(short);
    for (const message of transfer) expected.push(content(await pristine.accept(message)));
    let refused = 0;
    const runs = fc.record({ index: fc.nat(transfer.length - 1), seed: changes });
    await fc.assert(
      fc.asyncProperty(runs, async ({ index, seed }) => {
        const original = transfer[index] ?? Buffer.alloc(0);
        const mutated = changed(original, seed, transfer);
        const receiver = newReceiver(short);
        // Begin alone opens the transfer for anything; the first shard is right after it.
        if (index > 0) await receiver.accept(begin);
        for (const message of afterProgress.slice(0, Math.max(0, index - 2))) await receiver.accept(message);
        try {
          const event = await receiver.accept(mutated);
          if (event.type !== 'progress') expect(content(event)).toBe(expected[index]);
        } catch (thrown) {
          expectMuserError(thrown);
          refused++;
          expect(receiver.state).toBe('failed');
        }
      }),
      { numRuns: RUNS / 2 },
    );
    expect(refused).toBeGreaterThan(RUNS / 4);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.uint8Array({ maxLength: 200 }), { minLength: 1, maxLength: 4 }),
        async (messages) => {
          const receiver = newReceiver(short);
          for (const message of messages) {
            await expect(receiver.accept(Buffer.from(message))).rejects.toBeInstanceOf(MuserError);
          }
        },
      ),
      { numRuns: RUNS / 2 },
    );
  }, 120_000);
});

describe('every message', () => {
  // fault: code-in-messages
  it(`gives a MuserError or a value for ${RUNS} mutated encodings`, () => {
    const names = Object.keys(SCHEMAS) as (keyof typeof SCHEMAS)[];
    const encoded = fc.constantFrom(...names).chain((name) => {
      const schema = SCHEMAS[name] as unknown as Schema<unknown>;
      return fc.record({
        schema: fc.constant(schema),
        bytes: (arbitraries[name] as fc.Arbitrary<unknown>).map((value) => schema.encode(value)),
        seed: changes,
      });
    });
    fc.assert(
      fc.property(encoded, ({ schema, bytes, seed }) => {
        const mutated = changed(bytes, seed);
        attempt(() => schema.encode(schema.decode(mutated)));
        for (const decode of [
          decodeCertificateInstalled,
          decodeCertificateOrder,
          decodeCertificateRequest,
          decodeIssuedCertificate,
          decodeNodeStatus,
          decodeProducerList,
          decodeRevokedNodes,
          decodeRevokedNodesTaken,
          decodeSetPausedRequest,
          decodeWatchNodeRequest,
          decodeWatchProducersRequest,
        ]) {
          attempt(() => decode(mutated));
        }
      }),
      { numRuns: RUNS },
    );
  }, 120_000);
});
