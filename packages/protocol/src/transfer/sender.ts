import { createHash, type Hash } from 'node:crypto';
import { MuserError } from '../errors.js';
import type { Geometry, WireType } from '../geometry.js';
import type { SigningKey } from '../keys.js';
import { MAX_ERROR_MESSAGE_BYTES } from '../limits.js';
import {
  beginSchema,
  frameSchema,
  sealSchema,
  shardHeaderSchema,
  type Progress,
  type Seal,
  type ShardHeader,
} from '../messages.js';
import { lengthPrefixed } from '../wire/bytes.js';
import { Coverage } from './coverage.js';

export interface SenderOptions {
  readonly nonce: Uint8Array;
  /** requestDigestOf the request. */
  readonly requestDigest: Uint8Array;
  readonly producerId: string;
  /** The producer's identity key. */
  readonly key: SigningKey;
  readonly fingerprint: Uint8Array;
  readonly producerModel: Uint8Array;
  readonly geometry: Geometry;
  readonly wireType: WireType;
  readonly firstToken: number;
  readonly endToken: number;
  /** Upper bound of a chunk's tokens. */
  readonly chunkTokens: number;
}

/** What a producer says of a shard; sequence, payloadBytes and payloadSha256 are filled in. */
export type ShardRange = Omit<ShardHeader, 'sequence' | 'payloadBytes' | 'payloadSha256'>;
export type SealTimes = Pick<Seal, 'prefillStartUs' | 'prefillEndUs' | 'queueUs' | 'reusedTokens'>;
/** broken: a call was refused half-way, so only `error` is left. failed: an Error frame was made. */
export type SenderState = 'idle' | 'open' | 'broken' | 'sealed' | 'failed';

/**
 * The producer's side of one transfer: makes its messages and refuses, with the code that the decoder would give, what
 * the decoder would refuse. Each method returns one complete gRPC message (a PrefillFrame). docs/PROTOCOL.md has the
 * table of states.
 */
export class TransferSender {
  readonly #options: SenderOptions;
  readonly #coverage: Coverage;
  readonly #headers: Hash = createHash('sha256');
  #state: SenderState = 'idle';

  constructor(options: SenderOptions) {
    this.#options = options;
    this.#coverage = new Coverage(options);
  }

  get state(): SenderState {
    return this.#state;
  }

  begin(): Buffer {
    this.#expect('idle', 'begin');
    const { key, nonce, ...begin } = this.#options;
    const body = beginSchema.encode({ ...begin, nonce });
    const frame = frameSchema.encode({
      kind: 'begin',
      value: { body, signature: key.sign('muser/1/begin', nonce, body) },
    });
    this.#state = 'open';
    return frame;
  }

  /**
   * The next shard. The payload is copied once, into the returned message, and may be reused afterwards.
   * @param payload the rows of `range.parts` in their order, in wire form
   * @param payloadSha256 SHA-256 of the payload, 32 bytes; whoever made the payload hashes it, off this thread if need be
   */
  shard(range: ShardRange, payload: Uint8Array, payloadSha256: Uint8Array): Buffer {
    this.#expect('open', 'shard');
    const header: ShardHeader = {
      ...range,
      sequence: this.#coverage.shards,
      payloadBytes: payload.length,
      payloadSha256,
    };
    const encoded = shardHeaderSchema.encode(header);
    this.#state = 'broken';
    this.#coverage.add(header);
    this.#headers.update(lengthPrefixed([encoded]));
    const signature = this.#options.key.sign('muser/1/shard', this.#options.nonce, encoded);
    const frame = frameSchema.encode({ kind: 'shard', value: { header: encoded, signature, payload } });
    this.#state = 'open';
    return frame;
  }

  progress(progress: Progress): Buffer {
    this.#expect('open', 'progress');
    return frameSchema.encode({ kind: 'progress', value: progress });
  }

  /** Ends the transfer; every chunk must have been sent. */
  seal(times: SealTimes): Buffer {
    this.#expect('open', 'seal');
    const { key, nonce, requestDigest, endToken } = this.#options;
    if (!this.#coverage.complete) {
      throw new MuserError('TOTALS_MISMATCH', `sealed before all rows up to token ${endToken} were sent`);
    }
    const body = sealSchema.encode({
      ...this.#coverage.totals,
      requestDigest,
      headersDigest: this.#headers.copy().digest(),
      ...times,
    });
    const frame = frameSchema.encode({
      kind: 'seal',
      value: { body, signature: key.sign('muser/1/seal', nonce, body) },
    });
    this.#state = 'sealed';
    return frame;
  }

  /** Ends the transfer with a failure; allowed before begin too. The message is cut to its limit. */
  error(error: MuserError): Buffer {
    if (this.#state === 'sealed' || this.#state === 'failed') this.#refuse('error');
    this.#state = 'failed';
    return encodeErrorFrame(error);
  }

  #expect(state: SenderState, call: string): void {
    if (this.#state !== state) this.#refuse(call);
  }

  #refuse(call: string): never {
    throw new MuserError('SEQUENCE_STATE', `${call} is not possible when the transfer is ${this.#state}`);
  }
}

/** An Error frame, also for requests that fail before there is a sender. */
export function encodeErrorFrame(error: MuserError): Buffer {
  const { code, retryable } = error;
  const message = cutToBytes(error.message, MAX_ERROR_MESSAGE_BYTES);
  return frameSchema.encode({ kind: 'error', value: { code, message, retryable } });
}

/** The longest beginning of `text` that has at most `limit` bytes in UTF-8, never cut inside a character. */
function cutToBytes(text: string, limit: number): string {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(limit));
  return text.slice(0, read);
}
