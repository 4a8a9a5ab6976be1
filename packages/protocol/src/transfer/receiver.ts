import { createHash, type Hash } from 'node:crypto';
import { isErrorCode, MuserError, toMuserError } from '../errors.js';
import { rowBytesOf, sameGeometry, type Geometry, type KvKind, type WireType } from '../geometry.js';
import type { VerifyingKey } from '../keys.js';
import {
  beginSchema,
  frameSchema,
  sealSchema,
  shardHeaderSchema,
  type Begin,
  type ErrorFrame,
  type Frame,
  type Progress,
  type Seal,
  type Shard,
  type ShardHeader,
  type SignedBody,
} from '../messages.js';
import { asBuffer, lengthPrefixed } from '../wire/bytes.js';
import { Coverage, type CompleteChunk, type TransferTotals } from './coverage.js';

export interface TransferExpectation {
  /** The TLS peer. */
  readonly producerId: string;
  /** The key that is registered for this producer. */
  readonly producerKey: VerifyingKey;
  readonly fingerprint: Uint8Array;
  /** The decoder's own. */
  readonly geometry: Geometry;
  /** Those of the request. */
  readonly wireTypes: readonly WireType[];
  /** The tokens that the decoder holds. */
  readonly firstToken: number;
  /** One less than the tokens of the prompt. */
  readonly endToken: number;
}

export interface ReceiverOptions {
  readonly nonce: Uint8Array;
  readonly requestDigest: Uint8Array;
  readonly expect: TransferExpectation;
  /** SHA-256; by default on this thread. */
  readonly hash?: (payload: Uint8Array) => Uint8Array | Promise<Uint8Array>;
}

/** Rows [tokenStart, tokenStart + tokenCount) of one layer's K or V in wire form; `bytes` is a view of the message. */
export interface ReceivedPart {
  readonly layer: number;
  readonly kind: KvKind;
  readonly tokenStart: number;
  readonly tokenCount: number;
  readonly bytes: Buffer;
}

export type TransferEvent =
  | { readonly type: 'begin'; readonly begin: Begin }
  | {
      readonly type: 'shard';
      readonly header: ShardHeader;
      readonly parts: ReceivedPart[];
      readonly chunkComplete: CompleteChunk | null;
    }
  | { readonly type: 'progress'; readonly progress: Progress }
  | { readonly type: 'sealed'; readonly seal: Seal; readonly totals: TransferTotals };

export type ReceiverState = 'awaiting_begin' | 'receiving' | 'sealed' | 'failed';

/** A verified step whose payload may still be being hashed. */
interface Step {
  readonly event: TransferEvent;
  readonly next: ReceiverState;
  readonly digest?: { readonly expected: Uint8Array; readonly actual: Uint8Array | Promise<Uint8Array> };
}

const sha256 = (payload: Uint8Array): Uint8Array => createHash('sha256').update(payload).digest();

/**
 * The decoder's side of one transfer. An event is returned only after signature, digest, order and range hold; after
 * the first failure every call fails with that same error. docs/PROTOCOL.md has the table of states.
 */
export class TransferReceiver {
  readonly #options: ReceiverOptions;
  readonly #hash: (payload: Uint8Array) => Uint8Array | Promise<Uint8Array>;
  readonly #headers: Hash = createHash('sha256');
  #coverage: Coverage | null = null;
  /** Where checking has come to; `state` follows when the events have been returned. */
  #checked: ReceiverState = 'awaiting_begin';
  #state: ReceiverState = 'awaiting_begin';
  #failure: MuserError | null = null;
  #settled: Promise<void> = Promise.resolve();

  constructor(options: ReceiverOptions) {
    this.#options = options;
    this.#hash = options.hash ?? sha256;
  }

  get state(): ReceiverState {
    return this.#state;
  }

  /**
   * Takes the next message (a PrefillFrame). May be called again before it has settled, so that several payloads are
   * hashed at once; the promises settle in order, also when a later one has failed already. The message must not change until then.
   * @throws MuserError whatever is wrong with the message or the transfer, or the code of an Error frame
   */
  async accept(message: Buffer): Promise<TransferEvent> {
    const earlier = this.#settled;
    const outcome = this.#take(message, earlier);
    this.#settled = outcome.then(
      () => undefined,
      () => undefined,
    );
    return outcome;
  }

  /**
   * To be called when the stream has ended and every accept has settled.
   * @throws MuserError TRANSFER_TRUNCATED unless sealed, or the earlier failure
   */
  end(): void {
    this.#throwFailure();
    if (this.#state !== 'sealed') {
      throw this.#fail(new MuserError('TRANSFER_TRUNCATED', 'the stream ended before the Seal'));
    }
  }

  async #take(message: Buffer, earlier: Promise<void>): Promise<TransferEvent> {
    const step = this.#attempt(message);
    const found = step instanceof MuserError ? step : digestProblem(step);
    // A failure waits for what came before it, so that what is verified already is still handed out.
    const [problem] = await Promise.all([found, earlier]);
    this.#throwFailure();
    if (step instanceof MuserError) throw this.#fail(step);
    if (problem !== null) throw this.#fail(problem);
    this.#state = step.next;
    return step.event;
  }

  /** Everything that can be checked before the payload is hashed. After a failure nothing more is looked at. */
  #attempt(message: Buffer): Step | MuserError {
    if (this.#checked === 'failed') return new MuserError('ORDER_VIOLATION', 'the transfer has failed');
    try {
      const step = this.#check(message);
      this.#checked = step.next;
      return step;
    } catch (thrown) {
      this.#checked = 'failed';
      return toMuserError(thrown, 'INTERNAL');
    }
  }

  #throwFailure(): void {
    if (this.#failure !== null) throw this.#failure;
  }

  /** Called once at most: every way here has passed #throwFailure. */
  #fail(error: MuserError): MuserError {
    this.#failure = error;
    this.#checked = 'failed';
    this.#state = 'failed';
    return error;
  }

  #check(message: Buffer): Step {
    if (this.#checked === 'sealed') throw new MuserError('TRAILING_DATA', 'a message came after the Seal');
    const frame = frameSchema.decode(message);
    if (frame.kind === 'error') throw remoteError(frame.value);
    if (frame.kind === 'begin' ? this.#coverage !== null : this.#coverage === null) {
      throw new MuserError('ORDER_VIOLATION', `a frame of kind ${frame.kind} is not allowed while ${this.#checked}`);
    }
    return this.#checkInOrder(frame);
  }

  #checkInOrder(frame: Exclude<Frame, { kind: 'error' }>): Step {
    switch (frame.kind) {
      case 'begin':
        return this.#begin(frame.value);
      case 'shard':
        return this.#shard(frame.value, this.#open());
      case 'progress':
        return { event: { type: 'progress', progress: frame.value }, next: 'receiving' };
      case 'seal':
        return this.#seal(frame.value, this.#open());
    }
  }

  #open(): Coverage {
    if (this.#coverage === null) throw new MuserError('ORDER_VIOLATION', 'nothing is allowed before Begin');
    return this.#coverage;
  }

  #begin({ body, signature }: SignedBody): Step {
    const { nonce, requestDigest, expect } = this.#options;
    expect.producerKey.verify('muser/1/begin', [nonce, body], signature);
    const begin = beginSchema.decode(body);
    checkBegin(begin, nonce, requestDigest, expect);
    this.#coverage = new Coverage(begin);
    return { event: { type: 'begin', begin }, next: 'receiving' };
  }

  #shard(shard: Shard, coverage: Coverage): Step {
    const { nonce, expect } = this.#options;
    expect.producerKey.verify('muser/1/shard', [nonce, shard.header], shard.signature);
    const header = shardHeaderSchema.decode(shard.header);
    const payload = asBuffer(shard.payload);
    const chunkComplete = coverage.add(header);
    if (payload.length !== header.payloadBytes) {
      throw new MuserError(
        'DIGEST_MISMATCH',
        `the payload has ${payload.length} bytes, ${header.payloadBytes} are signed`,
      );
    }
    this.#headers.update(lengthPrefixed([shard.header]));
    return {
      event: { type: 'shard', header, parts: divide(payload, header, rowBytesOf(expect.geometry)), chunkComplete },
      next: 'receiving',
      digest: { expected: header.payloadSha256, actual: this.#hash(payload) },
    };
  }

  #seal({ body, signature }: SignedBody, coverage: Coverage): Step {
    const { nonce, requestDigest, expect } = this.#options;
    expect.producerKey.verify('muser/1/seal', [nonce, body], signature);
    const seal = sealSchema.decode(body);
    const { totals } = coverage;
    checkDigest(seal.requestDigest, requestDigest, 'the Seal is for another request');
    for (const field of ['shards', 'payloadBytes', 'chunks', 'endToken'] as const) {
      if (seal[field] !== totals[field]) {
        throw new MuserError(
          'TOTALS_MISMATCH',
          `the Seal says ${seal[field]} ${field}, received were ${totals[field]}`,
        );
      }
    }
    if (!coverage.complete) {
      throw new MuserError('TOTALS_MISMATCH', `sealed before all rows up to token ${expect.endToken} came`);
    }
    checkDigest(seal.headersDigest, this.#headers.digest(), 'the headers are not those that the Seal names');
    return { event: { type: 'sealed', seal, totals }, next: 'sealed' };
  }
}

/** What is wrong with a step's payload; never rejects, so that it may be waited for late. */
async function digestProblem({ digest }: Step): Promise<MuserError | null> {
  if (digest === undefined) return null;
  try {
    if (asBuffer(digest.expected).equals(await digest.actual)) return null;
  } catch (thrown) {
    return toMuserError(thrown, 'INTERNAL');
  }
  return new MuserError('DIGEST_MISMATCH', 'the payload is not the one that was signed');
}

function checkDigest(actual: Uint8Array, expected: Uint8Array, problem: string): void {
  if (!asBuffer(actual).equals(expected)) throw new MuserError('DIGEST_MISMATCH', problem);
}

function checkBegin(begin: Begin, nonce: Uint8Array, requestDigest: Uint8Array, expect: TransferExpectation): void {
  if (begin.producerId !== expect.producerId) {
    throw new MuserError('PEER_IDENTITY', `Begin is from ${begin.producerId}, the peer is ${expect.producerId}`);
  }
  checkDigest(begin.nonce, nonce, 'Begin is for another transfer');
  checkDigest(begin.requestDigest, requestDigest, 'Begin is for another request');
  if (!asBuffer(begin.fingerprint).equals(expect.fingerprint)) {
    throw new MuserError('MODEL_MISMATCH', "the producer's model does not fit the decoder's");
  }
  if (!sameGeometry(begin.geometry, expect.geometry)) {
    throw new MuserError('GEOMETRY_MISMATCH', "the producer's KV geometry is not the decoder's");
  }
  if (!expect.wireTypes.includes(begin.wireType)) {
    throw new MuserError(
      'GEOMETRY_MISMATCH',
      `${begin.wireType} was sent, accepted are ${expect.wireTypes.join(', ')}`,
    );
  }
  if (begin.firstToken !== expect.firstToken || begin.endToken !== expect.endToken) {
    throw new MuserError(
      'RANGE_VIOLATION',
      `the transfer is [${begin.firstToken}, ${begin.endToken}), expected [${expect.firstToken}, ${expect.endToken})`,
    );
  }
}

function divide(payload: Buffer, header: ShardHeader, rowBytes: number): ReceivedPart[] {
  const { tokenStart, tokenCount } = header;
  const partBytes = tokenCount * rowBytes;
  return header.parts.map(({ layer, kind }, index) => ({
    layer,
    kind,
    tokenStart,
    tokenCount,
    bytes: payload.subarray(index * partBytes, (index + 1) * partBytes),
  }));
}

/** The text comes from the peer: control characters are taken out, so that it can be logged and shown. */
function remoteError({ code, message }: ErrorFrame): MuserError {
  // eslint-disable-next-line no-control-regex -- they are what is looked for
  const clean = (value: string): string => value.replace(/[\u0000-\u001f\u007f-\u009f]/g, ' ');
  const details = { remote: true, peerCode: clean(code) };
  return new MuserError(isErrorCode(code) ? code : 'INTERNAL', `the producer: ${clean(message)}`, { details });
}
