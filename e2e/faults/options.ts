import { parseArgs } from 'node:util';
import type { Backend } from './system.js';

export const USAGE = `usage: npm run test:faults -- [--only FILTER] [--backend llama|vllm] [--random K] [--seed N] [--lanes N] [--json]

Breaks hand-offs in every phase of a transfer, over real processes and sockets, and checks after each one that the answer
is right, that nothing is left running, and that the next request is prefilled remotely. Linux only.

  --only FILTER   cells whose name holds this text: backend/where/fault/phase; may be given several times
  --backend NAME  llama or vllm; both when not given. vLLM is installed first when it is not there
  --random K      so many more cells, with any fault at any byte
  --seed N        of the documents and the random cells; it is printed, so that a run can be repeated
  --lanes N       systems on llama that work through the cells together (default 2)
  --json          the result as one JSON object in place of the table

examples:
  npm run test:faults
  npm run test:faults -- --backend llama --only /cut/
  npm run test:faults -- --backend llama --only random --random 100
  npm run test:faults -- --only 'producer/SIGKILL/middle chunk'
`;

export interface Options {
  /** Cells whose name holds one of these; none means every cell. */
  readonly only: readonly string[];
  readonly backends: readonly Backend[];
  readonly random: number;
  readonly seed: number;
  readonly lanes: number;
  readonly json: boolean;
}

export class UsageError extends Error {}

const MAX_RANDOM = 10_000;
const MAX_SEED = 2 ** 31;
const MAX_LANES = 8;
const DEFAULT_LANES = 2;

/** @returns null when help is wanted. @throws UsageError naming what is wrong */
export function parseOptions(args: readonly string[]): Options | null {
  const { help, only, backend, random, seed, lanes, json } = flagsOf(args);
  if (help) return null;
  if (backend !== undefined && backend !== 'llama' && backend !== 'vllm') {
    throw new UsageError(`--backend must be llama or vllm, not ${backend}`);
  }
  return {
    only: only ?? [],
    backends: backend === undefined ? ['llama', 'vllm'] : [backend],
    random: count('--random', random, 0, MAX_RANDOM) ?? 0,
    seed: count('--seed', seed, 0, MAX_SEED) ?? Math.floor(Math.random() * MAX_SEED),
    lanes: count('--lanes', lanes, 1, MAX_LANES) ?? DEFAULT_LANES,
    json: json ?? false,
  };
}

function flagsOf(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const flag = { type: 'boolean' } as const;
  try {
    return parseArgs({
      args: [...args],
      options: {
        help: flag,
        only: { ...text, multiple: true },
        backend: text,
        random: text,
        seed: text,
        lanes: text,
        json: flag,
      },
    }).values;
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

function count(flag: string, text: string | undefined, least: number, most: number): number | null {
  if (text === undefined) return null;
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (value >= least && value <= most) return value;
  throw new UsageError(`${flag} must be a whole number from ${least} to ${most}, not ${text}`);
}
