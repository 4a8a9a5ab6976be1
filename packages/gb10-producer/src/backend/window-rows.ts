import { type Geometry, windowStartOf } from '@muser/protocol';

import type { PrefillTask } from './backend.js';

/**
 * First window row to take out with the chunk [start, end). Window rows make resume points, and most of a long prompt's
 * bytes. When the link is behind, those that no decode needs are skipped: a chunk's, unless it reaches into the prompt's
 * last window. The next resume point is where a full window has been sent again.
 */
export function windowRowsFrom(geometry: Geometry, task: PrefillTask, start: number, end: number): number {
  const { staging, tokens, heldTokens } = task;
  const behind = 2 * staging.usedBytes > staging.limitBytes;
  const needed = end > tokens.length - 1 - geometry.windowTokens;
  return behind && !needed ? end : windowStartOf(geometry, heldTokens, start, end);
}
