import type { ErrorCode, NodeStatus } from '@muser/protocol';

import type { NodeRecord } from '../registry/store.js';

/**
 * What the coordinator thinks of a node. Producers are watched by a stream that the coordinator dials, decoders by the
 * stream that they hold to it.
 *
 * - `enrolled`: known; nothing has been heard of it since the coordinator started, or it is loading its model.
 * - `healthy`: its stream is alive and it says that it is ready. Decoders use only these.
 * - `draining`: its stream is alive; it finishes what it has and takes nothing new, because it closes or is being paused.
 * - `paused`: its stream is alive; an operator has paused it, so its model is unloaded. It stays so until it is resumed,
 *   whatever is restarted in between: the producer itself remembers it.
 * - `unreachable`: none of its addresses answers, its stream broke, or it was silent for too long. Dialled again and
 *   again, so it comes back by itself.
 * - `error`: it says so itself, or what answers at its addresses is another node or cannot be spoken to. `reason` says
 *   what; it is dialled again too, because the address may be mended.
 * - `revoked`: may not take part any more. The end.
 */
export type NodeState = 'enrolled' | 'healthy' | 'draining' | 'paused' | 'unreachable' | 'error' | 'revoked';

export interface StateReason {
  code: ErrorCode;
  message: string;
}

/** What was seen of a node. A new status replaces the last one, null keeps it. */
export interface Observation {
  state: Exclude<NodeState, 'revoked'>;
  /** Why it is unreachable or in error; null otherwise. */
  reason: StateReason | null;
  status: NodeStatus | null;
  /** Whether the node itself was heard, as opposed to missed. */
  heard: boolean;
}

/** A node with its registration and its present state. Times are Unix milliseconds. */
export interface NodeEntry {
  readonly record: NodeRecord;
  readonly state: NodeState;
  readonly reason: StateReason | null;
  /** Since when it has been in this state. */
  readonly sinceMs: number;
  /** When it was last heard; null since the coordinator started. */
  readonly lastSeenMs: number | null;
  /** The last one a producer sent since the coordinator started. */
  readonly status: NodeStatus | null;
}
