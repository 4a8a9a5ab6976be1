import type { NodeEntry } from '../nodes/node-state.js';

/** A node as the operator API shows it. Times are ISO 8601. */
export interface NodeView {
  nodeId: string;
  name: string;
  role: string;
  addresses: readonly string[];
  state: string;
  since: string;
  lastSeen: string | null;
  reason: { code: string; message: string } | null;
  /** Null unless the node is heard now. */
  load: { queueLength: number; activeTransfers: number; prefillTokensPerSecond: number } | null;
  /** Digests in hexadecimal; null until a producer has been heard. */
  model: { name: string; fingerprint: string; modelDigest: string } | null;
  backend: string | null;
  /** False while it is paused, or idle for so long that the next request loads the model again; null unless it is heard. */
  modelLoaded: boolean | null;
  version: string | null;
  certificateExpires: string;
}

export function viewOf({ record, state, reason, sinceMs, lastSeenMs, status }: NodeEntry): NodeView {
  const isHeard = state === 'healthy' || state === 'draining';
  return {
    nodeId: record.nodeId,
    name: record.name,
    role: record.role,
    addresses: record.addresses,
    state,
    since: isoTime(sinceMs),
    lastSeen: lastSeenMs === null ? null : isoTime(lastSeenMs),
    reason,
    load:
      status !== null && isHeard
        ? {
            queueLength: status.queueLength,
            activeTransfers: status.activeTransfers,
            prefillTokensPerSecond: status.prefillTokensPerSecond,
          }
        : null,
    model:
      status === null
        ? null
        : {
            name: status.model.name,
            fingerprint: hex(status.model.fingerprint),
            modelDigest: hex(status.model.modelDigest),
          },
    backend: status?.backend ?? null,
    modelLoaded: status === null || !(isHeard || state === 'paused') ? null : isHeard && !status.unloaded,
    version: status?.version ?? null,
    certificateExpires: isoTime(record.certificateExpiresAtMs),
  };
}

function isoTime(milliseconds: number): string {
  return new Date(milliseconds).toISOString();
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
