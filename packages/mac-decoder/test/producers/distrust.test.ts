// What becomes of a producer whose rows were found wrong, and how it comes back.
import { expect, test } from 'vitest';
import { Circuit } from '../../src/producers/circuit.js';
import { ProducerDirectory } from '../../src/producers/directory.js';
import { producerEntry, producerList } from '../support/entries.js';

const HALF_AN_HOUR_MS = 30 * 60_000;

/** A circuit just after its producer was found out, with another request of it under way. */
function distrusted() {
  const time = { ms: 0 };
  const circuit = new Circuit(() => time.ms);
  circuit.begin();
  circuit.begin();
  circuit.failed('KV_MISMATCH');
  return { time, circuit };
}

test.each([false, true])(
  'for half an hour nobody goes there, though another transfer succeeds meanwhile (checked and right: %s)',
  (foundRight) => {
    const { time, circuit } = distrusted();
    circuit.succeeded(foundRight);
    expect([circuit.admits, circuit.admitsRetry, circuit.isDistrusted]).toEqual([false, false, true]);
    time.ms = HALF_AN_HOUR_MS - 1;
    expect(circuit.admits).toBe(false);
    time.ms = HALF_AN_HOUR_MS;
    expect(circuit.admits).toBe(true);
  },
);

test('nor though another one fails meanwhile', () => {
  const { time, circuit } = distrusted();
  circuit.failed('PEER_UNREACHABLE');
  time.ms = HALF_AN_HOUR_MS - 1;
  expect([circuit.admits, circuit.admitsRetry]).toEqual([false, false]);
});

// promise: A producer that is distrusted, maybe wrongly, is used again only when a check of its rows was right.
test('then one probe at a time goes there, until the rows of one were found right', () => {
  const { time, circuit } = distrusted();
  time.ms = HALF_AN_HOUR_MS;
  for (let probe = 0; probe < 3; probe += 1) {
    circuit.begin();
    expect(circuit.admits).toBe(false);
    circuit.succeeded();
    expect([circuit.admits, circuit.awaitsProbe, circuit.isDistrusted]).toEqual([true, true, true]);
  }
  circuit.begin();
  circuit.succeeded(true);
  expect([circuit.admits, circuit.awaitsProbe, circuit.isDistrusted]).toEqual([true, false, false]);
});

test('a probe with wrong rows costs another half an hour, one that fails otherwise a second', () => {
  const { time, circuit } = distrusted();
  time.ms = HALF_AN_HOUR_MS;
  circuit.begin();
  circuit.failed('STALLED');
  expect([circuit.pauseLeftMs, circuit.isDistrusted]).toEqual([1_000, true]);
  time.ms += 1_000;
  circuit.begin();
  circuit.failed('KV_MISMATCH');
  expect(circuit.pauseLeftMs).toBe(HALF_AN_HOUR_MS);
});

test('a producer that was away and came back starts anew', () => {
  const { circuit } = distrusted();
  circuit.reset();
  expect([circuit.admits, circuit.isDistrusted]).toEqual([true, false]);
});

test('every producer whose rows may be wrong is distrusted, and no other', () => {
  const directory = new ProducerDirectory(() => 0);
  directory.update(producerList(...['first', 'second', 'third'].map((nodeId) => producerEntry({ nodeId }))));
  directory.distrust(['first', 'third', 'unknown']);
  expect(directory.available(10).map(({ entry }) => entry.nodeId)).toEqual(['second']);
});
