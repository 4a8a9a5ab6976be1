/** Status codes of gRPC that a MuserError can map to (names as in google.rpc.Code). */
export type GrpcStatusName =
  | 'CANCELLED'
  | 'INVALID_ARGUMENT'
  | 'DEADLINE_EXCEEDED'
  | 'NOT_FOUND'
  | 'ALREADY_EXISTS'
  | 'PERMISSION_DENIED'
  | 'RESOURCE_EXHAUSTED'
  | 'FAILED_PRECONDITION'
  | 'OUT_OF_RANGE'
  | 'INTERNAL'
  | 'UNAVAILABLE'
  | 'DATA_LOSS'
  | 'UNAUTHENTICATED';

export interface ErrorCodeInfo {
  /** Status of an HTTP answer that ends with this error. 499 is "client closed request". */
  readonly httpStatus: number;
  readonly grpcStatus: GrpcStatusName;
  /** True when the same request can succeed later or elsewhere without anybody changing anything. */
  readonly retryable: boolean;
  /** What happened, one sentence. */
  readonly meaning: string;
  /** What to do about it, one sentence. */
  readonly advice: string;
}

const entry = (
  httpStatus: number,
  grpcStatus: GrpcStatusName,
  retryable: boolean,
  meaning: string,
  advice: string,
): ErrorCodeInfo => Object.freeze({ httpStatus, grpcStatus, retryable, meaning, advice });

/** The closed list. docs/ERRORS.md is generated from it, and a test compares the two. */
export const ERROR_CODES = Object.freeze({
  INVALID_REQUEST: entry(
    400,
    'INVALID_ARGUMENT',
    false,
    'The request has a field that is missing, of the wrong type, or out of its range.',
    'Correct the field that the message names.',
  ),
  UNAUTHENTICATED: entry(
    401,
    'UNAUTHENTICATED',
    false,
    'The caller did not prove who it is.',
    'Send the operator token, or enroll the node.',
  ),
  PERMISSION_DENIED: entry(
    403,
    'PERMISSION_DENIED',
    false,
    'The caller is known but may not do this.',
    'Use a node of the right role, or enroll it again if it was revoked.',
  ),
  NODE_REVOKED: entry(
    403,
    'PERMISSION_DENIED',
    false,
    'The node was revoked: it may not take part any more.',
    'Make a new identity on it and enroll that, if it shall come back.',
  ),
  NOT_FOUND: entry(404, 'NOT_FOUND', false, 'What the request names does not exist.', 'Check the name or id.'),
  CANCELLED: entry(
    499,
    'CANCELLED',
    false,
    'The caller cancelled, disconnected, or the process is shutting down.',
    'Nothing to do; ask again if the answer is still wanted.',
  ),
  DEADLINE_EXCEEDED: entry(
    504,
    'DEADLINE_EXCEEDED',
    true,
    'The request did not finish before its deadline.',
    'Raise the deadline, shorten the prompt, or look at the queue of the producer.',
  ),
  RESOURCE_EXHAUSTED: entry(
    503,
    'RESOURCE_EXHAUSTED',
    true,
    'A limit on connections, requests or bytes in flight is reached.',
    'Try again when running requests have finished; see docs/LIMITS.md.',
  ),
  UNAVAILABLE: entry(
    503,
    'UNAVAILABLE',
    true,
    'The process is starting, stopping, or not able to serve now.',
    'Try again.',
  ),
  INTERNAL: entry(500, 'INTERNAL', false, 'A fault in muser itself.', 'Report it with the log of the process.'),
  CONFIG_INVALID: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'The configuration has an unknown key or a value that is not allowed.',
    'Correct the key that the message names; see docs/CONFIG.md.',
  ),
  PROTOCOL_VERSION: entry(
    426,
    'FAILED_PRECONDITION',
    false,
    'The peer speaks another version of the hand-off protocol.',
    'Install the same version of muser on both machines.',
  ),
  TICKET_INVALID: entry(
    403,
    'PERMISSION_DENIED',
    false,
    'The placement ticket is not signed by the coordinator, or names another decoder, producer or model.',
    'Let the decoder fetch a new ticket; enroll both nodes with the same coordinator.',
  ),
  TICKET_EXPIRED: entry(
    403,
    'PERMISSION_DENIED',
    true,
    'The placement ticket is past its end.',
    'Check that the coordinator is reachable from the decoder, and the clocks of both machines.',
  ),
  MODEL_MISMATCH: entry(
    409,
    'FAILED_PRECONDITION',
    false,
    'Decoder and producer have models that do not fit together.',
    'Load the same model on both: geometry, RoPE and tokenizer must be the same, weights may be quantized differently.',
  ),
  GEOMETRY_MISMATCH: entry(
    409,
    'FAILED_PRECONDITION',
    false,
    'The KV cache has another shape, or another element type, than the decoder asked for.',
    'Load the same model on both, and the same version of muser.',
  ),
  NONCE_ACTIVE: entry(
    409,
    'ALREADY_EXISTS',
    false,
    'A transfer with this nonce is running already.',
    'Make a new random nonce for each transfer.',
  ),
  PROMPT_TOO_LONG: entry(
    413,
    'OUT_OF_RANGE',
    false,
    'The prompt has more tokens than the ticket, the producer or the protocol allows.',
    'Shorten the prompt, or raise the limit of the producer.',
  ),
  QUEUE_FULL: entry(
    429,
    'RESOURCE_EXHAUSTED',
    true,
    "The producer's queue is full.",
    'Try again, add a producer, or prefill locally.',
  ),
  PRODUCER_DRAINING: entry(
    503,
    'UNAVAILABLE',
    true,
    'The producer finishes what it has and takes nothing new.',
    'Use another producer, or prefill locally.',
  ),
  PRODUCER_PAUSED: entry(
    503,
    'UNAVAILABLE',
    true,
    'An operator has paused the producer; its model is unloaded, or is about to be.',
    'Use another producer or prefill locally; `muser node resume NAME` loads the model again.',
  ),
  PRODUCER_SLOW: entry(
    504,
    'DEADLINE_EXCEEDED',
    true,
    'A remote prefill was left because local prefill had become the sooner way.',
    'Look at the load of the producer and the link; `--prefill remote` waits for it whatever it takes.',
  ),
  NO_PRODUCER: entry(
    503,
    'UNAVAILABLE',
    true,
    'No healthy producer has this model.',
    'Look at `muser node list`; start a producer with the same model.',
  ),
  PEER_UNREACHABLE: entry(
    502,
    'UNAVAILABLE',
    true,
    'The peer cannot be connected to, or the connection broke.',
    'Check that it runs, its address, and the network in between.',
  ),
  PEER_IDENTITY: entry(
    502,
    'UNAUTHENTICATED',
    false,
    'The peer at this address is not the node that was expected.',
    "Correct the node's address; if the machine was set up again, enroll it again.",
  ),
  TRANSFER_TRUNCATED: entry(
    502,
    'DATA_LOSS',
    true,
    'The stream ended before a valid Seal.',
    'Look at the log of the producer; it stopped or lost its connection.',
  ),
  MESSAGE_INVALID: entry(
    400,
    'INVALID_ARGUMENT',
    false,
    'A protocol message cannot be decoded, or breaks a rule that concerns it alone.',
    'Install the same version of muser on both machines; report it if it stays.',
  ),
  MESSAGE_TOO_LARGE: entry(
    413,
    'RESOURCE_EXHAUSTED',
    false,
    'A protocol message, or a field of one, is longer than its limit.',
    'Compare the message with docs/LIMITS.md.',
  ),
  SIGNATURE_INVALID: entry(
    502,
    'DATA_LOSS',
    false,
    'A signature does not fit its bytes, its key, its domain or this transfer.',
    'Look for a wrong or replaced identity key; something on the way may be changing data.',
  ),
  DIGEST_MISMATCH: entry(
    502,
    'DATA_LOSS',
    true,
    'Bytes that were received are not the bytes that were signed.',
    'Look for faulty memory or network hardware on both machines.',
  ),
  ORDER_VIOLATION: entry(
    502,
    'DATA_LOSS',
    false,
    'A frame came that is not allowed at this point of the transfer.',
    'Install the same version of muser on both machines; report it if it stays.',
  ),
  RANGE_VIOLATION: entry(
    502,
    'OUT_OF_RANGE',
    false,
    'A shard has tokens or layers outside what the transfer announced.',
    'Install the same version of muser on both machines; report it if it stays.',
  ),
  DUPLICATE_SHARD: entry(
    502,
    'DATA_LOSS',
    false,
    'A shard, or a row of the KV cache, came twice.',
    'Install the same version of muser on both machines; report it if it stays.',
  ),
  TOTALS_MISMATCH: entry(
    502,
    'DATA_LOSS',
    false,
    'The Seal does not agree with what was received.',
    'Look at the log of the producer; report it if it stays.',
  ),
  TRAILING_DATA: entry(
    502,
    'DATA_LOSS',
    false,
    'Something came after the Seal.',
    'Install the same version of muser on both machines; report it if it stays.',
  ),
  STALLED: entry(
    504,
    'DEADLINE_EXCEEDED',
    true,
    'The peer sent nothing for longer than the limit.',
    'Check the network and the load of the peer.',
  ),
  VALUE_INVALID: entry(
    502,
    'DATA_LOSS',
    false,
    'The KV cache that was received holds NaN or infinity.',
    "Check the producer's model and its numeric format.",
  ),
  KV_MISMATCH: entry(
    502,
    'DATA_LOSS',
    false,
    'The KV cache that was received is far from what this machine computes for the same tokens.',
    'Do not use this producer: qualify it again (`muser producer qualify`), check its model and its machine.',
  ),
  MODEL_LOAD_FAILED: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'The model file is missing, damaged or not a model.',
    'Check the path and the checksum of the file.',
  ),
  MODEL_UNSUPPORTED: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'The model is one that muser cannot hand over.',
    'See docs/MODELS.md for what can be handed over; muser models check tells for a file.',
  ),
  ENGINE_FAILED: entry(
    500,
    'INTERNAL',
    true,
    'The engine failed while computing.',
    'Look at the log; restart the process if it stays.',
  ),
  CONTEXT_FULL: entry(
    503,
    'RESOURCE_EXHAUSTED',
    true,
    'The KV cache has no room for this request now.',
    'Try again when other requests have finished, shorten the prompt, or raise contextTokens.',
  ),
  OUT_OF_MEMORY: entry(
    503,
    'RESOURCE_EXHAUSTED',
    false,
    'There is not enough memory for this.',
    'Use a smaller model or context, or close other programs.',
  ),
  SEQUENCE_STATE: entry(
    500,
    'INTERNAL',
    false,
    'An operation does not fit the state of its sequence or transfer.',
    'Report it with the log of the process.',
  ),
  ADDON_UNAVAILABLE: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'The native engine cannot be loaded on this machine.',
    'Run `muser doctor`; it says what is missing.',
  ),
  PORT_IN_USE: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'The port that the process should listen on is taken.',
    'Stop the other process, or set another port.',
  ),
  STATE_LOCKED: entry(
    500,
    'FAILED_PRECONDITION',
    false,
    'Another process uses the same state folder.',
    'Stop the other process, or use another state folder.',
  ),
  ENROLL_REFUSED: entry(
    403,
    'PERMISSION_DENIED',
    false,
    'The coordinator refused to enroll the node.',
    'Correct what the message names.',
  ),
  CERTIFICATE_INVALID: entry(
    401,
    'UNAUTHENTICATED',
    false,
    'A certificate is missing, expired, or does not fit its key or its coordinator.',
    'Enroll the node again.',
  ),
  CLOCK_SKEW: entry(
    401,
    'FAILED_PRECONDITION',
    false,
    'The clocks of two machines differ by more than is allowed.',
    'Set the clocks by NTP.',
  ),
} satisfies Record<string, ErrorCodeInfo>);

export type ErrorCode = keyof typeof ERROR_CODES;

export type ErrorDetails = Readonly<Record<string, string | number | boolean>>;

export function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === 'string' && Object.hasOwn(ERROR_CODES, value);
}

/**
 * The one error class that crosses borders: between processes, packages and to users. The message says what happened
 * to which thing, with actual and allowed values, and never contains prompt text or secrets.
 */
export class MuserError extends Error {
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; details?: ErrorDetails } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'MuserError';
    this.code = code;
    this.details = Object.freeze({ ...options.details });
  }

  /** Whether the same request can succeed later or elsewhere (see ERROR_CODES). */
  get retryable(): boolean {
    return ERROR_CODES[this.code].retryable;
  }

  /** For logs and answers; leaves out stack and cause, which may hold what must not leave the process. */
  toJSON(): { code: ErrorCode; message: string; retryable: boolean; details: ErrorDetails } {
    return { code: this.code, message: this.message, retryable: this.retryable, details: this.details };
  }
}

/**
 * What may be told of any failure to a peer or a client: an error that is not ours may quote data, so its text stays in
 * the cause, which no answer has in it.
 */
export function withoutForeignText(thrown: unknown): MuserError {
  if (thrown instanceof MuserError) return thrown;
  return new MuserError('INTERNAL', 'internal error; the log of the process says more', { cause: thrown });
}

/**
 * Passes a MuserError through, and wraps anything else under `fallback` with the original as its cause. An aborted
 * operation (an error named AbortError) becomes CANCELLED, a timed-out one (TimeoutError) DEADLINE_EXCEEDED.
 */
export function toMuserError(thrown: unknown, fallback: ErrorCode): MuserError {
  if (thrown instanceof MuserError) return thrown;
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const code =
    error.name === 'AbortError' ? 'CANCELLED' : error.name === 'TimeoutError' ? 'DEADLINE_EXCEEDED' : fallback;
  return new MuserError(code, error.message, { cause: thrown });
}

/**
 * Gives an error of `@muser/metal`, which knows nothing of this package, its place here: its codes are those of the list,
 * but for INVALID_ARGUMENT. Callers have checked every value by then, so that one is a fault of ours. Anything else is
 * taken as {@link toMuserError} does, with ENGINE_FAILED.
 */
export function fromEngineError(thrown: unknown): MuserError {
  if (!(thrown instanceof Error) || thrown.name !== 'EngineError') return toMuserError(thrown, 'ENGINE_FAILED');
  const code = 'code' in thrown && isErrorCode(thrown.code) ? thrown.code : 'INTERNAL';
  return new MuserError(code, thrown.message, { cause: thrown });
}
