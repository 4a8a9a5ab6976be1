// Whatever bytes an enrolled decoder sends, the producer answers with a code and goes on.
import { encodePrefillRequest, isErrorCode, MuserError } from '@muser/protocol';
import { mutated, Random } from '@muser/testing';
import { afterAll, beforeAll, expect, it } from 'vitest';

import { PatternBackend, patternRows } from './support/pattern-backend.js';
import { promptTokens } from './support/rows.js';
import { NOTHING_LEFT, TestBed, type TestPeer } from './support/test-bed.js';

const SEED = Number(process.env['MUSER_TEST_SEED'] ?? Date.now() % 1_000_000);
const REQUESTS = 10_000;
const AT_ONCE = 16;
/** A peer that makes many more calls at once than this is cut off. */
const REQUESTS_OF_A_PEER = 400;

let bed: TestBed;
let decoder: TestPeer;

beforeAll(async () => {
  bed = await TestBed.start({}, new PatternBackend());
  decoder = await bed.peer('decoder');
});

afterAll(() => bed.close());

/** Random bytes, or a good request with a few places changed. */
function hostileBytes(random: Random, from: TestPeer): Buffer {
  if (random.next() < 0.2)
    return Buffer.from(Array.from({ length: random.integer(0, 600) }, () => random.integer(0, 255)));
  const heldTokens = random.pick([0, 0, 5]);
  const tokens = promptTokens(random.integer(7, 40), 1000, random.integer(0, 1e6));
  return mutated(
    random,
    encodePrefillRequest(from.request({ tokens, heldTokens, deadlineMs: random.integer(1, 1000) })),
  );
}

// promise: A producer answers any hostile request with a code, and goes on serving.
it(`answers ${REQUESTS} random and changed requests with a code each (seed ${SEED})`, async () => {
  const random = new Random(SEED);
  const codes = new Map<string, number>();
  let left = REQUESTS;
  const worker = async (): Promise<void> => {
    let peer = decoder;
    for (let sent = 0; left > 0; sent += 1) {
      left -= 1;
      if (sent % REQUESTS_OF_A_PEER === 0) peer = await bed.peer('decoder');
      let code = 'served';
      try {
        for await (const _ of peer.client.prefill(hostileBytes(random, peer)));
      } catch (error) {
        expect(error, `seed ${SEED}`).toBeInstanceOf(MuserError);
        code = (error as MuserError).code;
        expect(isErrorCode(code)).toBe(true);
      }
      codes.set(code, (codes.get(code) ?? 0) + 1);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  // A fault of ours, a lost connection or a silent refusal would show here.
  for (const code of ['INTERNAL', 'PEER_UNREACHABLE', 'SEQUENCE_STATE', 'STALLED'])
    expect(codes.has(code), code).toBe(false);
  expect(codes.get('MESSAGE_INVALID')).toBeGreaterThan(REQUESTS / 4);
  expect(codes.get('TICKET_INVALID')).toBeGreaterThan(0);

  expect(await bed.idle()).toEqual(NOTHING_LEFT);
  const tokens = promptTokens(500, 1000, 1);
  const { rows } = await decoder.receive(decoder.request({ tokens }));
  expect(rows.firstDifference(patternRows(tokens))).toBeNull();
}, 120_000);
