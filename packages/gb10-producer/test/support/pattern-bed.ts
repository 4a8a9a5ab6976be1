// A producer on the pattern over real gRPC and mutual TLS, anew for each test of the file that imports this.
import { afterEach, expect } from 'vitest';

import { PatternBackend } from './pattern-backend.js';
import { promptTokens } from './rows.js';
import { NOTHING_LEFT, TestBed, type TestPeer } from './test-bed.js';

export let bed: TestBed;
export let backend: PatternBackend;
export let decoder: TestPeer;

/** @param steps that the backend takes before it waits for `backend.allow` */
export async function start(config: Record<string, unknown> = {}, steps = Infinity): Promise<void> {
  const maxConcurrent = (config['maxConcurrent'] as number | undefined) ?? 1;
  await startOn(new PatternBackend({ maxConcurrent }, steps), config);
}

export async function startOn(pattern: PatternBackend, config: Record<string, unknown> = {}): Promise<void> {
  backend = pattern;
  bed = await TestBed.start(config, backend);
  decoder = await bed.peer('decoder');
}

export const prompt = (length: number, seed = 1): Uint32Array => promptTokens(length, 1000, seed);

afterEach(async () => {
  backend.allow(Infinity);
  const left = await bed.idle();
  await bed.close();
  expect(left).toEqual(NOTHING_LEFT);
});
