import type { ErrorCode } from '@muser/protocol';
import { PHASES, type Expectation, type LinkFault, type Outcome, type Phase, type ProcessFault } from './cells.js';

export const UNHARMED: Expectation = [{ way: 'remote', failures: [] }];

const isBefore = (phase: Phase, other: Phase): boolean => PHASES.indexOf(phase) < PHASES.indexOf(other);

/** Local prefill goes on from the last chunk that was installed. */
function alone(phase: Phase, ...failures: ErrorCode[]): Outcome {
  return { way: isBefore(phase, 'middle chunk') ? 'local' : 'resumed', failures };
}

/**
 * A link that was there may come back: the same producer is asked again, unless local prefill is predicted to be sooner. When
 * every row is there, nothing is left to ask for.
 */
function afterBreak(phase: Phase): Expectation {
  const wasAccepted = phase === 'queued' || !isBefore(phase, 'first chunk');
  const byItself = alone(phase, 'PEER_UNREACHABLE');
  if (!wasAccepted || !isBefore(phase, 'seal')) return [byItself];
  return [{ way: 'remote', failures: ['PEER_UNREACHABLE'] }, byItself];
}

/** The same where the link does not come back: it is tried a few times at most. */
function whileDown(phase: Phase): Expectation {
  const once = alone(phase, 'PEER_UNREACHABLE');
  const wasAccepted = phase === 'queued' || !isBefore(phase, 'first chunk');
  if (!wasAccepted || !isBefore(phase, 'seal')) return [once];
  return [1, 2, 3, 4, 5].map((tries) => ({
    ...once,
    failures: Array.from({ length: tries }, () => 'PEER_UNREACHABLE' as const),
  }));
}

/** The receiver waits for what is missing: for ever when nothing follows, else it takes what follows for it. */
function afterDrop(phase: Phase): Expectation {
  switch (phase) {
    case 'connect':
    case 'end':
      return [alone(phase, 'STALLED')];
    case 'request':
      return [alone(phase, 'STALLED'), alone(phase, 'PEER_UNREACHABLE')];
    default:
      return afterBreak(phase);
  }
}

/** Of the connection on which the transfer runs. */
export function afterLinkFault(fault: LinkFault, phase: Phase): Expectation {
  if (phase === 'decoding') return UNHARMED;
  switch (fault) {
    case 'delay':
    case 'throttle':
    case 'brief stall':
      return UNHARMED;
    case 'stall':
    case 'half-open':
      return [alone(phase, 'STALLED')];
    case 'drop':
      return afterDrop(phase);
    case 'replay':
      // What comes twice is behind all that the transfer needs.
      return phase === 'end' ? UNHARMED : afterBreak(phase);
    case 'truncate':
      // These two are on the way to the producer: the decoder does not see the end.
      return phase === 'connect' || phase === 'request' ? [alone(phase, 'STALLED')] : afterBreak(phase);
    case 'corrupt':
    case 'cut':
    case 'reset':
      return afterBreak(phase);
    case 'link down':
      return whileDown(phase);
  }
}

/** What a producer has sent before it is stopped arrives: perhaps the rest of a chunk, at the end all. */
function afterStop(phase: Phase): Expectation {
  if (phase === 'seal' || phase === 'end') return UNHARMED;
  const stalled = alone(phase, 'STALLED');
  if (phase === 'first chunk') return [stalled, { ...stalled, way: 'resumed' }];
  return phase === 'last chunk' ? [stalled, ...UNHARMED] : [stalled];
}

/** Of a producer. */
export function afterProducerFault(fault: ProcessFault, phase: Phase): Expectation {
  if (phase === 'decoding') return UNHARMED;
  switch (fault) {
    case 'SIGKILL':
    case 'restart':
      return whileDown(phase);
    case 'SIGSTOP':
      return afterStop(phase);
    case 'no descriptors':
      // The connection waits to be accepted, or is accepted and closed at once.
      return phase === 'before' ? [alone(phase, 'STALLED'), alone(phase, 'PEER_UNREACHABLE')] : UNHARMED;
    case 'clock +1 h':
      return whileClocksDiffer(phase, 'TICKET_EXPIRED');
    case 'clock -1 h':
      return whileClocksDiffer(phase, 'PEER_UNREACHABLE');
    case 'brief SIGSTOP':
    case 'disk full':
    case 'clock +4 min':
      return UNHARMED;
  }
}

/** The coordinator lists a producer as broken when it hears of the other clock, within a second; what runs there goes on. */
function whileClocksDiffer(phase: Phase, refusal: ErrorCode): Expectation {
  return phase === 'before' ? [alone(phase, refusal), alone(phase, 'NO_PRODUCER')] : UNHARMED;
}

/** Of what computes for a producer: the producer itself lives, and says so. */
export function afterWorkerFault(fault: ProcessFault, phase: Phase): Expectation {
  if (fault !== 'SIGKILL') return afterProducerFault(fault, phase);
  // What it had computed meanwhile still arrives.
  const failures: ErrorCode[] = ['ENGINE_FAILED'];
  return [
    { way: 'local', failures },
    { way: 'resumed', failures },
  ];
}

export function afterDecoderFault(fault: ProcessFault, phase: Phase): Expectation {
  switch (fault) {
    case 'SIGKILL':
      return [{ way: 'lost', failures: [] }];
    case 'no descriptors':
      return phase === 'before' ? [alone(phase, 'PEER_UNREACHABLE')] : UNHARMED;
    case 'clock -1 h':
      return phase === 'before' ? [alone(phase, 'CLOCK_SKEW')] : UNHARMED;
    case 'SIGSTOP':
    case 'brief SIGSTOP':
    case 'restart':
    case 'disk full':
    case 'clock +1 h':
    case 'clock +4 min':
      return UNHARMED;
  }
}
