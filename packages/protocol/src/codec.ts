import { MuserError } from './errors.js';
import { PROTOCOL_VERSION } from './limits.js';
import {
  certificateInstalledSchema,
  certificateOrderSchema,
  certificateRequestSchema,
  frameSchema,
  issuedCertificateSchema,
  nodeStatusSchema,
  producerListSchema,
  requestVersionSchema,
  revokedNodesSchema,
  revokedNodesTakenSchema,
  setPausedRequestSchema,
  watchNodeRequestSchema,
  watchProducersRequestSchema,
  type CertificateInstalled,
  type CertificateOrder,
  type CertificateRequest,
  type Frame,
  type IssuedCertificate,
  type NodeStatus,
  type ProducerList,
  type RevokedNodes,
  type RevokedNodesTaken,
  type SetPausedRequest,
  type WatchNodeRequest,
  type WatchProducersRequest,
} from './messages.js';

/** @throws MuserError PROTOCOL_VERSION when field 1 of `bytes` is another version than ours. */
export function checkVersion(bytes: Uint8Array): void {
  const { protocolVersion } = requestVersionSchema.decode(bytes);
  if (protocolVersion !== PROTOCOL_VERSION) {
    throw new MuserError(
      'PROTOCOL_VERSION',
      `the peer speaks version ${protocolVersion} of the hand-off protocol, this process version ${PROTOCOL_VERSION}`,
      { details: { peerVersion: protocolVersion, ownVersion: PROTOCOL_VERSION } },
    );
  }
}

export const encodeNodeStatus = (status: NodeStatus): Buffer => nodeStatusSchema.encode(status);
export const decodeNodeStatus = (bytes: Uint8Array): NodeStatus => nodeStatusSchema.decode(bytes);

export const encodeWatchNodeRequest = (request: WatchNodeRequest): Buffer => watchNodeRequestSchema.encode(request);
export function decodeWatchNodeRequest(bytes: Uint8Array): WatchNodeRequest {
  checkVersion(bytes);
  return watchNodeRequestSchema.decode(bytes);
}

export const encodeSetPausedRequest = (request: SetPausedRequest): Buffer => setPausedRequestSchema.encode(request);
export function decodeSetPausedRequest(bytes: Uint8Array): SetPausedRequest {
  checkVersion(bytes);
  return setPausedRequestSchema.decode(bytes);
}

export const encodeRevokedNodes = (nodes: RevokedNodes): Buffer => revokedNodesSchema.encode(nodes);
export function decodeRevokedNodes(bytes: Uint8Array): RevokedNodes {
  checkVersion(bytes);
  return revokedNodesSchema.decode(bytes);
}

export const encodeRevokedNodesTaken = (taken: RevokedNodesTaken): Buffer => revokedNodesTakenSchema.encode(taken);
export const decodeRevokedNodesTaken = (bytes: Uint8Array): RevokedNodesTaken => revokedNodesTakenSchema.decode(bytes);

export const encodeCertificateOrder = (order: CertificateOrder): Buffer => certificateOrderSchema.encode(order);
export function decodeCertificateOrder(bytes: Uint8Array): CertificateOrder {
  checkVersion(bytes);
  return certificateOrderSchema.decode(bytes);
}

export const encodeCertificateRequest = (request: CertificateRequest): Buffer =>
  certificateRequestSchema.encode(request);
export function decodeCertificateRequest(bytes: Uint8Array): CertificateRequest {
  checkVersion(bytes);
  return certificateRequestSchema.decode(bytes);
}

export const encodeIssuedCertificate = (issued: IssuedCertificate): Buffer => issuedCertificateSchema.encode(issued);
export function decodeIssuedCertificate(bytes: Uint8Array): IssuedCertificate {
  checkVersion(bytes);
  return issuedCertificateSchema.decode(bytes);
}

export const encodeCertificateInstalled = (installed: CertificateInstalled): Buffer =>
  certificateInstalledSchema.encode(installed);
export const decodeCertificateInstalled = (bytes: Uint8Array): CertificateInstalled =>
  certificateInstalledSchema.decode(bytes);

export const encodeWatchProducersRequest = (request: WatchProducersRequest): Buffer =>
  watchProducersRequestSchema.encode(request);
export function decodeWatchProducersRequest(bytes: Uint8Array): WatchProducersRequest {
  checkVersion(bytes);
  return watchProducersRequestSchema.decode(bytes);
}

export const encodeProducerList = (list: ProducerList): Buffer => producerListSchema.encode(list);
export const decodeProducerList = (bytes: Uint8Array): ProducerList => producerListSchema.decode(bytes);

/** For tools and tests; a transfer's messages are made by TransferSender and read by TransferReceiver. */
export const encodeFrame = (frame: Frame): Buffer => frameSchema.encode(frame);
export const decodeFrame = (bytes: Uint8Array): Frame => frameSchema.decode(bytes);
