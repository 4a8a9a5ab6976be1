import type { ErrorCode } from '@muser/protocol';
import type { Backend, Role } from './system.js';

/** Where a transfer is when something happens to it, in order. */
export const PHASES = [
  'connect',
  'handshake',
  'request',
  'queued',
  'begin',
  'first chunk',
  'middle chunk',
  'last chunk',
  'seal',
  'end',
  'decoding',
] as const;
export type Phase = (typeof PHASES)[number];

/** What the way between decoder and producer does. */
export const LINK_FAULTS = [
  'delay',
  'throttle',
  'brief stall',
  'stall',
  'half-open',
  'drop',
  'corrupt',
  'replay',
  'truncate',
  'cut',
  'reset',
] as const;
export type LinkFault = (typeof LINK_FAULTS)[number];

/** What happens to a process. */
export const PROCESS_FAULTS = ['SIGKILL', 'SIGSTOP', 'brief SIGSTOP'] as const;
export type ProcessFault = (typeof PROCESS_FAULTS)[number];

export type Happening =
  | { readonly kind: 'link'; readonly fault: LinkFault }
  | { readonly kind: 'process'; readonly fault: ProcessFault; readonly role: Role };

/** How the prompt came into the decoder's cache, as the answer says it. */
export type Way = 'remote' | 'resumed' | 'local';

/** What came of a request. */
export interface Outcome {
  readonly way: Way;
  /** Codes of the attempts that failed, in their order; that of the fallback when nothing was attempted. */
  readonly failures: readonly ErrorCode[];
}

/** What may come of it, and nothing else. */
export type Expectation = readonly Outcome[];

export function outcomeText({ way, failures }: Outcome): string {
  return failures.length === 0 ? way : `${way} after ${failures.join(', ')}`;
}

export interface Cell {
  readonly id: string;
  readonly backend: Backend;
  readonly where: string;
  readonly phase: Phase;
  readonly happening: Happening;
  readonly expect: Expectation;
}

const UNHARMED: Expectation = [{ way: 'remote', failures: [] }];

const isBefore = (phase: Phase, other: Phase): boolean => PHASES.indexOf(phase) < PHASES.indexOf(other);

/** Local prefill goes on from the last chunk that was installed. */
function alone(phase: Phase, ...failures: ErrorCode[]): Expectation {
  return [{ way: isBefore(phase, 'middle chunk') ? 'local' : 'resumed', failures }];
}

/** The same producer is asked again once its link is back, unless local prefill is predicted to be sooner. */
function again(phase: Phase, ...failures: ErrorCode[]): Expectation {
  return [{ way: 'remote', failures }, ...alone(phase, ...failures)];
}

/** A link can only come back that was there; and with every row there is nothing to ask for again. */
function afterBreak(phase: Phase, code: ErrorCode): Expectation {
  const wasAccepted = phase === 'queued' || !isBefore(phase, 'first chunk');
  return wasAccepted && isBefore(phase, 'seal') ? again(phase, code) : alone(phase, code);
}

function expectOfLink(fault: LinkFault, phase: Phase): Expectation {
  if (phase === 'decoding') return UNHARMED;
  switch (fault) {
    case 'delay':
    case 'throttle':
    case 'brief stall':
      return UNHARMED;
    case 'stall':
    case 'half-open':
      return alone(phase, 'STALLED');
    case 'drop':
    case 'corrupt':
    case 'replay':
    case 'truncate':
    case 'cut':
    case 'reset':
      return afterBreak(phase, 'PEER_UNREACHABLE');
  }
}

function expectOfProducer(fault: ProcessFault, phase: Phase): Expectation {
  if (phase === 'decoding') return UNHARMED;
  switch (fault) {
    case 'SIGKILL':
      return alone(phase, 'PEER_UNREACHABLE');
    case 'SIGSTOP':
      return alone(phase, 'STALLED');
    case 'brief SIGSTOP':
      return UNHARMED;
  }
}

function linkCells(backend: Backend): Cell[] {
  return LINK_FAULTS.flatMap((fault) =>
    PHASES.map((phase) => ({
      id: `${backend}/link/${fault}/${phase}`,
      backend,
      where: 'decoder - producer',
      phase,
      happening: { kind: 'link' as const, fault },
      expect: expectOfLink(fault, phase),
    })),
  );
}

function producerCells(backend: Backend): Cell[] {
  return PROCESS_FAULTS.flatMap((fault) =>
    PHASES.map((phase) => ({
      id: `${backend}/producer/${fault}/${phase}`,
      backend,
      where: 'producer',
      phase,
      happening: { kind: 'process' as const, fault, role: 'producer' as const },
      expect: expectOfProducer(fault, phase),
    })),
  );
}

export function allCells(): Cell[] {
  return [...linkCells('llama'), ...producerCells('llama')];
}
