import { MuserError } from './errors.js';
import { PROTOCOL_VERSION } from './limits.js';
import {
  frameSchema,
  nodeStatusSchema,
  producerListSchema,
  requestVersionSchema,
  setPausedRequestSchema,
  watchNodeRequestSchema,
  watchProducersRequestSchema,
  type Frame,
  type NodeStatus,
  type ProducerList,
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
