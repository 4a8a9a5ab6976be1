export * from './errors.js';
export * from './limits.js';
export { isNodeId, nodeIdOf } from './ids.js';
export { modelNameOf } from './model-name.js';
export { generateSigningKey, signedBytes, signingKeyFromSeed, verifyingKey } from './keys.js';
export type { Domain, SigningKey, VerifyingKey } from './keys.js';
export { chunkBytesOf, ELEMENT_BYTES, fingerprintOf, rowBytesOf, sameGeometry } from './geometry.js';
export type { Geometry, KvKind, LayerKind, RopeLayers, WireType } from './geometry.js';
export type {
  Begin,
  CertificateInstalled,
  CertificateOrder,
  CertificateRequest,
  ErrorFrame,
  Frame,
  IssuedCertificate,
  ModelIdentity,
  NodeState,
  NodeStatus,
  Part,
  PrefillRequest,
  ProducerEntry,
  ProducerList,
  Progress,
  RevokedNodes,
  RevokedNodesTaken,
  Seal,
  SetPausedRequest,
  Shard,
  ShardHeader,
  SignedBody,
  Ticket,
  UnavailableProducer,
  UnavailableReason,
  WatchNodeRequest,
  WatchProducersRequest,
} from './messages.js';
export { decodePrefillRequest, encodePrefillRequest, requestDigestOf, tokensDigest } from './request.js';
export {
  decodeCertificateInstalled,
  decodeCertificateOrder,
  decodeCertificateRequest,
  decodeFrame,
  decodeIssuedCertificate,
  decodeNodeStatus,
  decodeProducerList,
  decodeRevokedNodes,
  decodeRevokedNodesTaken,
  decodeSetPausedRequest,
  decodeWatchNodeRequest,
  decodeWatchProducersRequest,
  encodeCertificateInstalled,
  encodeCertificateOrder,
  encodeCertificateRequest,
  encodeFrame,
  encodeIssuedCertificate,
  encodeNodeStatus,
  encodeProducerList,
  encodeRevokedNodes,
  encodeRevokedNodesTaken,
  encodeSetPausedRequest,
  encodeWatchNodeRequest,
  encodeWatchProducersRequest,
} from './codec.js';
export { checkTicket, openTicket, sealTicket } from './ticket.js';
export type { TicketUse } from './ticket.js';
export { planChunkShards, windowStartOf } from './transfer/plan.js';
export type { ChunkRange, ShardPlan } from './transfer/plan.js';
export type { CompleteChunk, TransferRange, TransferTotals } from './transfer/coverage.js';
export { encodeErrorFrame, TransferSender } from './transfer/sender.js';
export type { SealTimes, SenderOptions, SenderState, ShardRange } from './transfer/sender.js';
export { TransferReceiver } from './transfer/receiver.js';
export type {
  ReceivedPart,
  ReceiverOptions,
  ReceiverState,
  TransferEvent,
  TransferExpectation,
} from './transfer/receiver.js';
