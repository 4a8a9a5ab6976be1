import { engineCall } from '../errors/engine-errors.js';
import type { MeasuredRates } from '../placement/rates.js';
import type { DecoderEngine } from './decoder-engine.js';

/** The first step of an engine costs more than the later ones (kernels are compiled, memory is touched). */
const STEPS = 2;
const MOST_STEP_TOKENS = 512;

/** Prefills a little, so that the first request is not slow and placement knows this machine's rate from the start. */
export async function measureLocalPrefill(
  engine: DecoderEngine,
  rates: MeasuredRates,
  signal: AbortSignal,
): Promise<void> {
  const tokens = Math.min(MOST_STEP_TOKENS, engine.chunkTokens, Math.floor(engine.contextTokens / STEPS));
  const { vocabularySize } = engine.geometry;
  // Which tokens does not matter; different ones, so that nothing is shared.
  const step = Uint32Array.from({ length: tokens }, (_, index) => index % vocabularySize);
  const lease = await engine.admit({ prompt: step, reserveTokens: tokens * STEPS }, signal);
  try {
    let milliseconds = 0;
    for (let count = 0; count < STEPS; count++) {
      const startedAt = performance.now();
      await engineCall(() => lease.sequence.evaluate(step, { signal }));
      milliseconds = performance.now() - startedAt;
    }
    rates.local.learn(tokens * (STEPS - 1), tokens * STEPS, milliseconds);
  } finally {
    await lease.release();
  }
}
