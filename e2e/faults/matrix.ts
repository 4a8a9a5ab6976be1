import { Random } from '@muser/testing';
import {
  cellId,
  LINK_FAULTS,
  PHASES,
  type Cell,
  type Expectation,
  type Happening,
  type LinkFault,
  type LinkName,
  type Phase,
  type ProcessFault,
  type Target,
} from './cells.js';
import { afterDecoderFault, afterLinkFault, afterProducerFault, afterWorkerFault, UNHARMED } from './expectations.js';
import type { Backend } from './system.js';

const TRANSFERRING = PHASES.filter((phase) => phase !== 'before');

function cell(backend: Backend, phase: Phase, happening: Happening, expect: Expectation): Cell {
  return { id: cellId(backend, happening, phase), backend, phase, happening, expect };
}

function linkCells(backend: Backend, faults: readonly LinkFault[], phases: readonly Phase[]): Cell[] {
  return faults.flatMap((fault) =>
    phases.map((phase) => {
      const happening: Happening = { kind: 'link', fault, link: 'decoder - producer' };
      return cell(backend, phase, happening, afterLinkFault(fault, phase));
    }),
  );
}

function asideCells(link: LinkName, faults: readonly LinkFault[], phase: Phase): Cell[] {
  return faults.map((fault) => cell('llama', phase, { kind: 'link', fault, link }, UNHARMED));
}

function processCells(backend: Backend, target: Target, fault: ProcessFault, phases: readonly Phase[]): Cell[] {
  const expectOf = (phase: Phase): Expectation => {
    if (target === 'decoder') return afterDecoderFault(fault, phase);
    if (target === 'coordinator' || target === 'bystander') return UNHARMED;
    if (target === 'vLLM worker') return afterWorkerFault(fault, phase);
    return afterProducerFault(fault, phase);
  };
  return phases.map((phase) => cell(backend, phase, { kind: 'process', fault, target }, expectOf(phase)));
}

function llamaCells(): Cell[] {
  const of = (target: Target, fault: ProcessFault, ...phases: Phase[]): Cell[] =>
    processCells('llama', target, fault, phases);
  return [
    ...linkCells('llama', LINK_FAULTS, TRANSFERRING),
    ...asideCells('decoder - coordinator', LINK_FAULTS, 'middle chunk'),
    ...asideCells('coordinator - producer', LINK_FAULTS, 'middle chunk'),
    ...of('producer', 'SIGKILL', ...PHASES),
    ...of('producer', 'SIGSTOP', ...PHASES),
    ...of('producer', 'brief SIGSTOP', 'connect', 'begin', 'middle chunk', 'seal'),
    ...of('producer', 'no descriptors', 'before', 'begin', 'middle chunk'),
    ...of('producer', 'disk full', 'before', 'middle chunk', 'decoding'),
    ...of('producer', 'clock +1 h', 'before', 'middle chunk'),
    ...of('producer', 'clock -1 h', 'before', 'middle chunk'),
    ...of('producer', 'clock +4 min', 'before'),
    ...of('decoder', 'SIGKILL', 'request', 'queued', 'first chunk', 'middle chunk', 'seal', 'decoding'),
    ...of('decoder', 'brief SIGSTOP', 'begin', 'middle chunk', 'seal', 'decoding'),
    ...of('decoder', 'no descriptors', 'before', 'begin', 'middle chunk'),
    ...of('decoder', 'disk full', 'before', 'middle chunk', 'decoding'),
    ...of('decoder', 'clock +1 h', 'before', 'middle chunk'),
    ...of('decoder', 'clock -1 h', 'before', 'middle chunk'),
    ...of('decoder', 'clock +4 min', 'before'),
    ...of('coordinator', 'SIGKILL', 'before', 'queued', 'middle chunk', 'decoding'),
    ...of('coordinator', 'restart', 'queued', 'middle chunk', 'decoding'),
    ...of('coordinator', 'SIGSTOP', 'before', 'middle chunk'),
    ...of('coordinator', 'no descriptors', 'before', 'middle chunk'),
    ...of('coordinator', 'disk full', 'before', 'middle chunk'),
    ...of('coordinator', 'clock +1 h', 'middle chunk'),
    ...of('coordinator', 'clock -1 h', 'middle chunk'),
  ];
}

function vllmCells(): Cell[] {
  const of = (target: Target, fault: ProcessFault, ...phases: Phase[]): Cell[] =>
    processCells('vllm', target, fault, phases);
  return [
    ...linkCells('vllm', LINK_FAULTS, ['begin', 'middle chunk', 'seal']),
    ...of('producer', 'brief SIGSTOP', 'begin', 'middle chunk'),
    ...of('producer', 'SIGSTOP', 'middle chunk'),
    ...of('producer', 'no descriptors', 'middle chunk'),
    ...of('producer', 'disk full', 'middle chunk'),
    ...of('decoder', 'SIGKILL', 'middle chunk'),
    ...of('vLLM worker', 'brief SIGSTOP', 'begin', 'middle chunk'),
    ...of('vLLM worker', 'SIGSTOP', 'begin'),
    // Its return takes longer than all other cells of a row.
    ...of('vLLM worker', 'SIGKILL', 'first chunk'),
  ];
}

/** Every cell of the matrix, in the order in which they run. */
export const allCells = (): Cell[] => [...llamaCells(), ...vllmCells()];

/** Any fault at any byte: what came of it is one of the ends that are allowed for that fault. */
export function randomCells(backend: Backend, count: number, seed: number): Cell[] {
  const random = new Random(seed);
  return Array.from({ length: count }, (_, index) => {
    const happening: Happening = { kind: 'link', fault: random.pick(LINK_FAULTS), link: 'decoder - producer' };
    const share = Math.round(random.next() * 10_000) / 10_000;
    const expect = PHASES.flatMap((phase) => afterLinkFault(happening.fault, phase));
    const id = cellId(backend, happening, `random ${index}, at ${(100 * share).toFixed(2)} %`);
    return { id, backend, phase: 'middle chunk', happening, share, expect };
  });
}
