import { type Geometry, windowStartOf } from '@muser/protocol';

import type { PrefillTask } from './backend.js';

/** The link is behind when so many earlier chunks of the transfer are computed and not wholly sent. */
export const BEHIND_CHUNKS = 2;

/**
 * First window row to take out with the chunk [start, end). Window rows make resume points, and most of a long prompt's
 * bytes. When the link is behind, those that no decode needs are skipped: a chunk's, unless it reaches into the prompt's
 * last window. The next resume point is where a full window has been sent again.
 *
 * @param unsentChunks earlier ones that were taken out and not released
 */
export function windowRowsFrom(
  geometry: Geometry,
  task: Pick<PrefillTask, 'tokens' | 'heldTokens'>,
  { start, end }: { readonly start: number; readonly end: number },
  unsentChunks: number,
): number {
  const skipped = unsentChunks >= BEHIND_CHUNKS && !reachesLastWindow(geometry, task, end);
  return skipped ? end : windowStartOf(geometry, task.heldTokens, start, end);
}

/** Whether decoding needs window rows of a chunk that ends there. */
export function reachesLastWindow(geometry: Geometry, { tokens }: Pick<PrefillTask, 'tokens'>, end: number): boolean {
  return end > tokens.length - 1 - geometry.windowTokens;
}
