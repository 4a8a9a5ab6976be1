import {
  DIGEST_BYTES,
  MAX_ADDRESS_BYTES,
  MAX_ADDRESSES,
  MAX_CERTIFICATE_BYTES,
  MAX_CHUNK_TOKENS,
  MAX_DEADLINE_MS,
  MAX_ERROR_CODE_BYTES,
  MAX_ERROR_MESSAGE_BYTES,
  MAX_LAYERS,
  MAX_MESSAGE_BYTES,
  MAX_NAME_BYTES,
  MAX_PARTS_PER_SHARD,
  MAX_PAYLOAD_BYTES,
  MAX_PRODUCERS,
  MAX_PROMPT_TOKENS,
  MAX_QUEUE_LENGTH,
  MAX_REVOKED_NODES,
  MAX_SERIAL_BYTES,
  MAX_SHARD_HEADER_BYTES,
  MAX_SIGNED_BODY_BYTES,
  MAX_TICKET_BYTES,
  MAX_VERSION_BYTES,
  MAX_WATCH_INTERVAL_MS,
  MAX_WIRE_TYPES,
  MIN_PROMPT_TOKENS,
  MIN_WATCH_INTERVAL_MS,
  NODE_ID_BYTES,
  NONCE_BYTES,
  PUBLIC_KEY_BYTES,
  SIGNATURE_BYTES,
  TICKET_ID_BYTES,
} from './limits.js';
import { geometrySchema, kvKinds, wireTypes } from './geometry.js';
import { isNodeId } from './ids.js';
import { invalid } from './wire/bytes.js';
import {
  bool,
  bytes,
  double,
  enumeration,
  fixedBytes,
  names,
  oneName,
  text,
  texts,
  uint32,
  uint32Array,
  uint64,
} from './wire/fields.js';
import { message, nested, oneOf, repeated, type Infer } from './wire/schema.js';

const nodeId = (number: number) => text(number, { minBytes: NODE_ID_BYTES, maxBytes: NODE_ID_BYTES });
const digest = (number: number) => fixedBytes(number, DIGEST_BYTES);
const nonce = (number: number) => fixedBytes(number, NONCE_BYTES);
const tokenCount = (number: number, min = 0) => uint32(number, { min, max: MAX_PROMPT_TOKENS });

function checkNodeId(value: string, path: string): void {
  if (!isNodeId(value)) throw invalid(path, 'is not a node id');
}

export const modelIdentitySchema = message('ModelIdentity', 512, {
  /** fingerprintOf the model: what two models must share. */
  fingerprint: digest(1),
  /** SHA-256 of the weights file (or of the list of files of a checkpoint). */
  modelDigest: digest(2),
  name: text(3, { maxBytes: MAX_NAME_BYTES }),
});
export type ModelIdentity = Infer<typeof modelIdentitySchema>;

/** A body and the signature over exactly these bytes. The body is decoded only after the signature holds. */
export const signedBodySchema = message('SignedBody', MAX_SIGNED_BODY_BYTES + 128, {
  body: bytes(1, { min: 1, max: MAX_SIGNED_BODY_BYTES }),
  signature: fixedBytes(2, SIGNATURE_BYTES),
});
export type SignedBody = Infer<typeof signedBodySchema>;

export const ticketSchema = message(
  'Ticket',
  MAX_TICKET_BYTES,
  {
    ticketId: fixedBytes(1, TICKET_ID_BYTES),
    decoderId: nodeId(2),
    producerId: nodeId(3),
    fingerprint: digest(4),
    decoderModel: digest(5),
    producerModel: digest(6),
    maxPromptTokens: tokenCount(7, MIN_PROMPT_TOKENS),
    issuedAtMs: uint64(8),
    expiresAtMs: uint64(9),
  },
  (value, path) => {
    checkNodeId(value.decoderId, `${path}.decoderId`);
    checkNodeId(value.producerId, `${path}.producerId`);
    if (value.expiresAtMs <= value.issuedAtMs) throw invalid(path, 'ends before it begins');
  },
);
/** The coordinator's permission for one decoder to use one producer with one pair of models. Times: Unix ms. */
export type Ticket = Infer<typeof ticketSchema>;

/** Only the version: read first, so that a newer peer gets PROTOCOL_VERSION and not a decoding error. */
export const requestVersionSchema = message('PrefillRequest', MAX_MESSAGE_BYTES, { protocolVersion: uint32(1) });

export const prefillRequestSchema = message('PrefillRequest', MAX_MESSAGE_BYTES, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** 16 random bytes, new for each transfer. */
  nonce: nonce(2),
  /** An encoded SignedBody whose body is a Ticket. */
  ticket: bytes(3, { min: 1, max: MAX_TICKET_BYTES }),
  fingerprint: digest(4),
  decoderModel: digest(5),
  /** Token ids of the whole prompt. */
  tokens: uint32Array(6, { min: MIN_PROMPT_TOKENS, max: MAX_PROMPT_TOKENS }),
  /** How many of the first tokens the decoder holds already, with a full window before this position. */
  heldTokens: tokenCount(7),
  /** tokensDigest of the held tokens; empty when none. */
  heldDigest: bytes(8, { max: DIGEST_BYTES }),
  /** What the decoder accepts, best first. */
  wireTypes: names(9, wireTypes, { min: 1, max: MAX_WIRE_TYPES }),
  /** Milliseconds from receipt until the transfer is given up. */
  deadlineMs: uint32(10, { min: 1, max: MAX_DEADLINE_MS }),
  /** Compute chunk that is wanted, in tokens; 0: the producer's choice. */
  chunkTokens: uint32(11, { max: MAX_CHUNK_TOKENS }),
});
export type PrefillRequest = Infer<typeof prefillRequestSchema>;

export const beginSchema = message(
  'Begin',
  MAX_SIGNED_BODY_BYTES,
  {
    producerId: nodeId(1),
    /** requestDigestOf the request as it was received. */
    requestDigest: digest(2),
    fingerprint: digest(3),
    producerModel: digest(4),
    geometry: nested(5, geometrySchema),
    wireType: oneName(6, wireTypes),
    /** First token of the transfer: the number of tokens that the decoder holds. */
    firstToken: tokenCount(7),
    /** End of the transfer: one less than the tokens of the prompt. */
    endToken: tokenCount(8, 1),
    /** Upper bound of a chunk's tokens. */
    chunkTokens: uint32(9, { min: 1, max: MAX_CHUNK_TOKENS }),
    nonce: nonce(10),
  },
  (value, path) => {
    checkNodeId(value.producerId, `${path}.producerId`);
    if (value.endToken <= value.firstToken) throw invalid(path, 'transfers no token');
  },
);
export type Begin = Infer<typeof beginSchema>;

export const partSchema = message('Part', 32, {
  layer: uint32(1, { max: MAX_LAYERS - 1 }),
  kind: oneName(2, kvKinds),
});
/** Rows of one layer's K or V; the rows are the shard's token range. */
export type Part = Infer<typeof partSchema>;

export const shardHeaderSchema = message('ShardHeader', MAX_SHARD_HEADER_BYTES, {
  /** 0 for the first shard of a transfer, then one more each. */
  sequence: uint32(1),
  chunkIndex: uint32(2, { max: MAX_PROMPT_TOKENS }),
  chunkStart: tokenCount(3),
  chunkEnd: tokenCount(4, 1),
  /** First window row that comes with this chunk; equal to chunkEnd when the window layers are skipped. */
  windowStart: tokenCount(5),
  tokenStart: tokenCount(6),
  tokenCount: uint32(7, { min: 1, max: MAX_CHUNK_TOKENS }),
  /** In the order of their bytes in the payload, each tokenCount rows. */
  parts: repeated(8, partSchema, { min: 1, max: MAX_PARTS_PER_SHARD }),
  payloadBytes: uint32(9, { min: 1, max: MAX_PAYLOAD_BYTES }),
  payloadSha256: digest(10),
});
export type ShardHeader = Infer<typeof shardHeaderSchema>;

export const shardSchema = message('Shard', MAX_MESSAGE_BYTES - 64, {
  /** An encoded ShardHeader. */
  header: bytes(1, { min: 1, max: MAX_SHARD_HEADER_BYTES }),
  signature: fixedBytes(2, SIGNATURE_BYTES),
  payload: bytes(3, { min: 1, max: MAX_PAYLOAD_BYTES }),
});
export type Shard = Infer<typeof shardSchema>;

export const progressSchema = message('Progress', 128, {
  /** Requests before this one; 0 when it runs. */
  queuePosition: uint32(1, { max: MAX_QUEUE_LENGTH }),
  tokensPrefilled: tokenCount(2),
  tokensTotal: tokenCount(3),
});
/** Not signed: it is for people to look at, and nothing is decided by it. */
export type Progress = Infer<typeof progressSchema>;

export const sealSchema = message(
  'Seal',
  MAX_SIGNED_BODY_BYTES,
  {
    requestDigest: digest(1),
    shards: uint32(2, { min: 1, max: 2 ** 32 - 1 }),
    payloadBytes: uint64(3),
    chunks: uint32(4, { min: 1, max: MAX_PROMPT_TOKENS }),
    endToken: tokenCount(5, 1),
    /** SHA-256 over u32 LE length and bytes of every shard's header, in order. */
    headersDigest: digest(6),
    /** Microseconds from the sending of Begin to the start and the end of compute. */
    prefillStartUs: uint64(7),
    prefillEndUs: uint64(8),
    /** Microseconds that the request waited in the queue. */
    queueUs: uint64(9),
    /** Tokens of the prompt that the producer did not have to compute. */
    reusedTokens: tokenCount(10),
  },
  (value, path) => {
    if (value.prefillEndUs < value.prefillStartUs) throw invalid(path, 'prefill ends before it begins');
  },
);
export type Seal = Infer<typeof sealSchema>;

/** As it is on the wire: the code is text, so that a code of a later version still reads (as INTERNAL). */
export const errorFrameSchema = message('ErrorFrame', MAX_ERROR_MESSAGE_BYTES + 256, {
  code: text(1, { minBytes: 1, maxBytes: MAX_ERROR_CODE_BYTES }),
  message: text(2, { maxBytes: MAX_ERROR_MESSAGE_BYTES }),
  retryable: bool(3),
});
export type ErrorFrame = Infer<typeof errorFrameSchema>;

export const frameSchema = oneOf('PrefillFrame', MAX_MESSAGE_BYTES, {
  begin: nested(1, signedBodySchema),
  shard: nested(2, shardSchema),
  progress: nested(3, progressSchema),
  seal: nested(4, signedBodySchema),
  error: nested(5, errorFrameSchema),
});
/** `{ kind, value }`; value of begin and seal is a SignedBody, of shard a Shard. */
export type Frame = Infer<typeof frameSchema>;

export type NodeState = 'starting' | 'ready' | 'draining' | 'error' | 'paused';
export const nodeStates = enumeration<NodeState>('NodeState', {
  starting: 1,
  ready: 2,
  draining: 3,
  error: 4,
  paused: 5,
});

export const nodeStatusSchema = message(
  'NodeStatus',
  8 * 1024,
  {
    nodeId: nodeId(1),
    state: oneName(2, nodeStates),
    model: nested(3, modelIdentitySchema),
    geometry: nested(4, geometrySchema),
    maxPromptTokens: tokenCount(5),
    queueLength: uint32(6, { max: MAX_QUEUE_LENGTH }),
    activeTransfers: uint32(7, { max: MAX_QUEUE_LENGTH }),
    /** Measured; 0 while unknown. */
    prefillTokensPerSecond: double(8),
    backend: text(9, { maxBytes: MAX_NAME_BYTES }),
    version: text(10, { maxBytes: MAX_VERSION_BYTES }),
    /** Unix milliseconds by the sender's clock. */
    sentAtMs: uint64(11),
    /** Why it is not ready, for people; may be empty. */
    reason: text(12, { maxBytes: MAX_ERROR_MESSAGE_BYTES }),
    /** Ready, but idle for so long that the next request has to load the model. */
    unloaded: bool(13),
  },
  (value, path) => checkNodeId(value.nodeId, `${path}.nodeId`),
);
export type NodeStatus = Infer<typeof nodeStatusSchema>;

export const watchNodeRequestSchema = message('WatchNodeRequest', 4 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** At most this long between two messages. */
  intervalMs: uint32(2, { min: MIN_WATCH_INTERVAL_MS, max: MAX_WATCH_INTERVAL_MS }),
});
export type WatchNodeRequest = Infer<typeof watchNodeRequestSchema>;

export const setPausedRequestSchema = message('SetPausedRequest', 4 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** False resumes. */
  paused: bool(2),
  /** When pausing: ends the transfers that run instead of finishing them. */
  cancelRunning: bool(3),
  /** Milliseconds from receipt until the caller is told that it is not done; the order stands. */
  deadlineMs: uint32(4, { min: 1, max: MAX_DEADLINE_MS }),
});
export type SetPausedRequest = Infer<typeof setPausedRequestSchema>;

export const revokedNodesSchema = message(
  'RevokedNodes',
  MAX_MESSAGE_BYTES,
  {
    protocolVersion: uint32(1, { min: 1, max: 1 }),
    /** Goes up with every revocation; a list with a lower one than the last only adds. */
    version: uint64(2),
    nodeIds: texts(3, { maxBytes: NODE_ID_BYTES, count: { min: 0, max: MAX_REVOKED_NODES } }),
  },
  (value, path) => {
    for (const [index, id] of value.nodeIds.entries()) checkNodeId(id, `${path}.nodeIds[${index}]`);
  },
);
/** Every node that is revoked and whose certificate has not ended. */
export type RevokedNodes = Infer<typeof revokedNodesSchema>;

export const revokedNodesTakenSchema = message('RevokedNodesTaken', 4 * 1024, {
  /** Of the list that holds now. */
  version: uint64(1),
});
export type RevokedNodesTaken = Infer<typeof revokedNodesTakenSchema>;

export const certificateOrderSchema = message('CertificateOrder', 4 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
});
export type CertificateOrder = Infer<typeof certificateOrderSchema>;

export const certificateRequestSchema = message('CertificateRequest', 8 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** Ed25519; the sender's node id is its hash. */
  signingPublicKey: fixedBytes(2, PUBLIC_KEY_BYTES),
  /** PKCS #10, DER, signed by the new TLS key. */
  csr: bytes(3, { min: 1, max: MAX_CERTIFICATE_BYTES }),
  /** The identity key's signature over ('muser/1/csr', csr). */
  proof: fixedBytes(4, SIGNATURE_BYTES),
});
export type CertificateRequest = Infer<typeof certificateRequestSchema>;

export const issuedCertificateSchema = message('IssuedCertificate', 8 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** X.509, DER. */
  certificate: bytes(2, { min: 1, max: MAX_CERTIFICATE_BYTES }),
});
export type IssuedCertificate = Infer<typeof issuedCertificateSchema>;

export const certificateInstalledSchema = message('CertificateInstalled', 4 * 1024, {
  /** Hexadecimal, upper case, as X509Certificate.serialNumber gives it. */
  serial: text(1, { minBytes: 1, maxBytes: MAX_SERIAL_BYTES }),
});
export type CertificateInstalled = Infer<typeof certificateInstalledSchema>;

export const watchProducersRequestSchema = message('WatchProducersRequest', 4 * 1024, {
  protocolVersion: uint32(1, { min: 1, max: 1 }),
  /** The decoder's model. */
  model: nested(2, modelIdentitySchema),
  /** The decoder's name, for people. */
  name: text(3, { maxBytes: MAX_NAME_BYTES }),
});
export type WatchProducersRequest = Infer<typeof watchProducersRequestSchema>;

export const producerEntrySchema = message(
  'ProducerEntry',
  8 * 1024,
  {
    nodeId: nodeId(1),
    name: text(2, { maxBytes: MAX_NAME_BYTES }),
    /** "host:port", best first. */
    addresses: texts(3, { maxBytes: MAX_ADDRESS_BYTES, count: { min: 0, max: MAX_ADDRESSES } }),
    /** Ed25519 key that signs this producer's transfers. */
    signingPublicKey: fixedBytes(4, PUBLIC_KEY_BYTES),
    producerModel: digest(5),
    state: oneName(6, nodeStates),
    queueLength: uint32(7, { max: MAX_QUEUE_LENGTH }),
    prefillTokensPerSecond: double(8),
    maxPromptTokens: tokenCount(9),
    /** An encoded SignedBody whose body is a Ticket. */
    ticket: bytes(10, { min: 1, max: MAX_TICKET_BYTES }),
    ticketExpiresAtMs: uint64(11),
    /** What prefills there, as in NodeStatus. */
    backend: text(12, { maxBytes: MAX_NAME_BYTES }),
  },
  (value, path) => checkNodeId(value.nodeId, `${path}.nodeId`),
);
export type ProducerEntry = Infer<typeof producerEntrySchema>;

export type UnavailableReason = 'not_heard' | 'unreachable' | 'error' | 'other_model';
export const unavailableReasons = enumeration<UnavailableReason>('UnavailableReason', {
  not_heard: 1,
  unreachable: 2,
  error: 3,
  other_model: 4,
});

export const unavailableProducerSchema = message(
  'UnavailableProducer',
  1024,
  {
    nodeId: nodeId(1),
    name: text(2, { maxBytes: MAX_NAME_BYTES }),
    reason: oneName(3, unavailableReasons),
  },
  (value, path) => checkNodeId(value.nodeId, `${path}.nodeId`),
);
export type UnavailableProducer = Infer<typeof unavailableProducerSchema>;

/** Names every producer that is enrolled: one that is in neither list is revoked. */
export const producerListSchema = message('ProducerList', MAX_MESSAGE_BYTES, {
  coordinatorTimeMs: uint64(1),
  producers: repeated(2, producerEntrySchema, { min: 0, max: MAX_PRODUCERS }),
  /** An order to renew the certificate; the decoder carries out each once. Empty: none. */
  renewOrder: text(3, { maxBytes: MAX_SERIAL_BYTES }),
  /** Those that get no requests; transfers that run there go on. */
  unavailable: repeated(4, unavailableProducerSchema, { min: 0, max: MAX_PRODUCERS }),
});
export type ProducerList = Infer<typeof producerListSchema>;

/** Every message type by its name in proto/muser/v1. */
export const SCHEMAS = {
  Geometry: geometrySchema,
  ModelIdentity: modelIdentitySchema,
  SignedBody: signedBodySchema,
  Ticket: ticketSchema,
  PrefillRequest: prefillRequestSchema,
  Begin: beginSchema,
  Part: partSchema,
  ShardHeader: shardHeaderSchema,
  Shard: shardSchema,
  Progress: progressSchema,
  Seal: sealSchema,
  ErrorFrame: errorFrameSchema,
  PrefillFrame: frameSchema,
  NodeStatus: nodeStatusSchema,
  WatchNodeRequest: watchNodeRequestSchema,
  SetPausedRequest: setPausedRequestSchema,
  RevokedNodes: revokedNodesSchema,
  RevokedNodesTaken: revokedNodesTakenSchema,
  CertificateOrder: certificateOrderSchema,
  CertificateRequest: certificateRequestSchema,
  IssuedCertificate: issuedCertificateSchema,
  CertificateInstalled: certificateInstalledSchema,
  WatchProducersRequest: watchProducersRequestSchema,
  ProducerEntry: producerEntrySchema,
  UnavailableProducer: unavailableProducerSchema,
  ProducerList: producerListSchema,
};
