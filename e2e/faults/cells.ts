import type { ErrorCode } from '@muser/protocol';
import type { Backend, Role } from './system.js';

/** Where a transfer is when something happens to it, in order. */
export const PHASES = [
  'before',
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

/** What a connection between two processes does. */
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
  'link down',
] as const;
export type LinkFault = (typeof LINK_FAULTS)[number];

/** What happens to a process. */
export const PROCESS_FAULTS = [
  'SIGKILL',
  'restart',
  'SIGSTOP',
  'brief SIGSTOP',
  'no descriptors',
  'disk full',
  'clock +1 h',
  'clock -1 h',
  'clock +4 min',
] as const;
export type ProcessFault = (typeof PROCESS_FAULTS)[number];

/** The connections that go through a proxy, each named by who dials and who listens. */
export type LinkName = 'decoder - producer' | 'decoder - coordinator' | 'coordinator - producer';
export type Target = Role | 'vLLM worker';

export type Happening =
  | { readonly kind: 'link'; readonly fault: LinkFault; readonly link: LinkName }
  | { readonly kind: 'process'; readonly fault: ProcessFault; readonly target: Target };

/**
 * How the prompt came into the decoder's cache, as the answer says it; `lost`: there is no answer, because the decoder that
 * was asked is gone.
 */
export type Way = 'remote' | 'resumed' | 'local' | 'lost';

/** What came of a request. */
export interface Outcome {
  readonly way: Way;
  /** Codes of the attempts that failed, in their order; that of the fallback when nothing was attempted. */
  readonly failures: readonly ErrorCode[];
}

/** What may come of it, and nothing else. */
export type Expectation = readonly Outcome[];

export interface Cell {
  readonly id: string;
  readonly backend: Backend;
  readonly phase: Phase;
  readonly happening: Happening;
  /** Where in the bytes of the transfer it happens, in place of the middle of its phase. */
  readonly share?: number;
  readonly expect: Expectation;
}

export function outcomeText({ way, failures }: Outcome): string {
  return failures.length === 0 ? way : `${way} after ${failures.join(', ')}`;
}

export function whereText(happening: Happening): string {
  return happening.kind === 'link' ? happening.link : happening.target;
}

export function cellId(backend: Backend, happening: Happening, phase: string): string {
  return [backend, whereText(happening), happening.fault, phase].join('/');
}
