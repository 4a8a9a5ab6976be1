import type { UnavailableReason } from '@muser/protocol';
import { describe, expect, test } from 'vitest';
import { Circuit } from '../../src/producers/circuit.js';
import { ProducerDirectory } from '../../src/producers/directory.js';
import { producerEntry, producerList } from '../support/entries.js';

describe('Circuit', () => {
  function at(start: number) {
    const time = { ms: start };
    return { time, circuit: new Circuit(() => time.ms) };
  }

  // fault: failed-for-ever
  test('a failure keeps requests away for a while, then lets one probe', () => {
    const { time, circuit } = at(0);
    circuit.begin();
    circuit.failed('PEER_UNREACHABLE');
    expect(circuit.admits).toBe(false);
    expect(circuit.pauseLeftMs).toBe(1_000);
    time.ms = 1_000;
    expect(circuit.admits).toBe(true);
    circuit.begin();
    expect(circuit.admits).toBe(false);
    circuit.succeeded();
    expect(circuit.admits).toBe(true);
  });

  test('each failed probe doubles the pause, up to a minute', () => {
    const { time, circuit } = at(0);
    const pauses: number[] = [];
    for (let attempt = 0; attempt < 9; attempt++) {
      circuit.begin();
      circuit.failed('STALLED');
      pauses.push(circuit.pauseLeftMs);
      time.ms += circuit.pauseLeftMs;
    }
    expect(pauses).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60].map((seconds) => seconds * 1_000));
  });

  test('a request whose link dropped may be the probe before the pause is over; that fails for the same reason', () => {
    const { time, circuit } = at(0);
    circuit.begin();
    circuit.failed('PEER_UNREACHABLE');
    time.ms = 100;
    expect(circuit.admits).toBe(false);
    expect(circuit.admitsRetry).toBe(true);
    circuit.begin();
    expect(circuit.admitsRetry).toBe(false);
    circuit.failed('PEER_UNREACHABLE');
    expect(circuit.pauseLeftMs).toBe(900);
    circuit.begin();
    circuit.succeeded();
    expect(circuit.admits).toBe(true);
  });

  test('being too slow for a request is no failure; a circuit for the pace is opened by itself', () => {
    const { circuit } = at(0);
    circuit.begin();
    circuit.failed('PRODUCER_SLOW');
    expect(circuit.admits).toBe(true);
    circuit.trip();
    expect(circuit.admits).toBe(false);
    expect(circuit.awaitsProbe).toBe(false);
  });

  test('requests that fail together count once', () => {
    const { circuit } = at(0);
    circuit.begin();
    circuit.begin();
    circuit.failed('PEER_UNREACHABLE');
    circuit.failed('PEER_UNREACHABLE');
    expect(circuit.pauseLeftMs).toBe(1_000);
  });

  test.each(['CANCELLED', 'QUEUE_FULL', 'PROMPT_TOO_LONG', 'PRODUCER_DRAINING', 'PRODUCER_PAUSED'] as const)(
    '%s says nothing about health, and gives a probe back',
    (code) => {
      const { time, circuit } = at(0);
      circuit.begin();
      circuit.failed(code);
      expect(circuit.admits).toBe(true);
      circuit.failed('STALLED');
      time.ms = 1_000;
      circuit.begin();
      circuit.failed(code);
      expect(circuit.admits).toBe(true);
    },
  );
});

test('a request that says nothing about the producer gives a probe back', () => {
  const time = { ms: 0 };
  const circuit = new Circuit(() => time.ms);
  circuit.begin();
  circuit.undecided();
  expect(circuit.admits).toBe(true);
  circuit.failed('STALLED');
  time.ms = 1_000;
  circuit.begin();
  expect(circuit.admits).toBe(false);
  circuit.undecided();
  expect(circuit.admits).toBe(true);
});

test('of many requests at once one is the probe', () => {
  const time = { ms: 0 };
  const circuit = new Circuit(() => time.ms);
  circuit.failed('STALLED');
  time.ms = 1_000;
  const admitted = Array.from({ length: 100 }, () => {
    const { admits } = circuit;
    if (admits) circuit.begin();
    return admits;
  });
  expect(admitted.filter(Boolean)).toHaveLength(1);
});

describe('ProducerDirectory', () => {
  function directory() {
    const time = { ms: 5_000 };
    return { time, directory: new ProducerDirectory(() => time.ms) };
  }

  test('offers producers that are ready and take so long a prompt', () => {
    const { directory: known } = directory();
    known.update(
      producerList(
        producerEntry({ nodeId: 'ready', maxPromptTokens: 100 }),
        producerEntry({ nodeId: 'draining', state: 'draining' }),
      ),
    );
    expect(known.available(100).map(({ entry }) => entry.nodeId)).toEqual(['ready']);
    expect(known.available(101)).toEqual([]);
    expect(known.explainAbsence(101)).toContain('PROMPT_TOO_LONG');
    expect(known.explainAbsence(101)).toContain('draining');
  });

  test("a ticket lasts as long as the coordinator's clock says, whatever time it is here", () => {
    const { time, directory: known } = directory();
    known.update({
      coordinatorTimeMs: 1e12,
      producers: [producerEntry({ ticketExpiresAtMs: 1e12 + 10_000 })],
      renewOrder: '',
      unavailable: [],
    });
    time.ms += 7_999;
    expect(known.available(10)).toHaveLength(1);
    time.ms += 2;
    expect(known.available(10)).toHaveLength(0);
    expect(known.explainAbsence(10)).toContain('TICKET_EXPIRED');
  });

  test('a failure is remembered over lists, and forgotten when the producer was away', () => {
    const { directory: known } = directory();
    const list = producerList(producerEntry());
    known.update(list);
    const [producer] = known.available(10);
    producer?.circuit.begin();
    producer?.circuit.failed('PEER_UNREACHABLE');
    known.update(list);
    expect(known.available(10)).toHaveLength(0);
    expect(known.explainAbsence(10)).toContain('failed a moment ago');
    known.update(producerList(producerEntry({ state: 'error' })));
    known.update(list);
    expect(known.available(10)).toHaveLength(1);
  });

  test('a failure in a transfer that goes on is remembered over the start of a coordinator', () => {
    const { directory: known } = directory();
    const { nodeId, name } = producerEntry();
    const absent = (reason: UnavailableReason): void =>
      known.update({ ...producerList(), unavailable: [{ nodeId, name, reason }] });
    known.update(producerList(producerEntry()));
    const [running] = known.available(10);
    running?.circuit.begin();
    absent('not_heard');
    expect(known.available(10)).toEqual([]);
    expect(known.explainAbsence(10)).toContain('spark has not been heard by the coordinator yet');
    running?.circuit.failed('KV_MISMATCH');
    known.update(producerList(producerEntry()));
    expect(known.available(10)).toEqual([]);
    expect(known.explainAbsence(10)).toContain('failed a moment ago');
    // It was away itself, so it begins anew.
    absent('unreachable');
    expect(known.explainAbsence(10)).toContain('spark cannot be reached by the coordinator');
    known.update(producerList(producerEntry()));
    expect(known.available(10)).toHaveLength(1);
  });

  test('says so when there is nobody', () => {
    expect(directory().directory.explainAbsence(10)).toContain('no healthy producer');
  });
});
