import type { MethodDefinition, ServiceDefinition } from '@grpc/grpc-js';

/**
 * Messages pass gRPC as the bytes they are: @muser/protocol encodes and decodes, which costs a shard one copy less and keeps
 * malformed messages out of grpc-js. A test compares these paths with proto/muser/v1.
 */
const bytes = (message: Buffer): Buffer => message;

function serverStream(path: string): MethodDefinition<Buffer, Buffer> {
  return {
    path,
    requestStream: false,
    responseStream: true,
    requestSerialize: bytes,
    requestDeserialize: bytes,
    responseSerialize: bytes,
    responseDeserialize: bytes,
  };
}

export const HANDOFF_SERVICE = {
  Prefill: serverStream('/muser.v1.Handoff/Prefill'),
} satisfies ServiceDefinition;

export const NODE_SERVICE = {
  Watch: serverStream('/muser.v1.Node/Watch'),
  SetPaused: serverStream('/muser.v1.Node/SetPaused'),
  SetRevoked: serverStream('/muser.v1.Node/SetRevoked'),
  RequestCertificate: serverStream('/muser.v1.Node/RequestCertificate'),
  InstallCertificate: serverStream('/muser.v1.Node/InstallCertificate'),
} satisfies ServiceDefinition;

export const PLACEMENT_SERVICE = {
  WatchProducers: serverStream('/muser.v1.Placement/WatchProducers'),
  RenewCertificate: serverStream('/muser.v1.Placement/RenewCertificate'),
} satisfies ServiceDefinition;
