import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { ENGINE_THREADS, MUSE_NANO, inRepository } from './machine.js';
import { figure, median } from './statistics.js';

const DEPTHS = [512, 4096, 16000];
const ROUNDS = 5;

/** What both programs print: the rates of one run at one depth. */
interface Rates {
  prefillTokensPerSecond: number;
  decodeTokensPerSecond: number;
}

/**
 * Local prefill and decode by the engine against a plain C loop on the same library, with the same number of
 * sequences, cells, threads and chunk. Both run in processes of their own, in turns.
 */
export async function decodeBenchmark(): Promise<object> {
  const depths = [];
  for (const depth of DEPTHS) {
    const engine: Rates[] = [];
    const loop: Rates[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      loop.push(await runLoop(depth));
      engine.push(await runEngine(depth));
    }
    const compare = (key: keyof Rates) => {
      const [ours, theirs] = [median(engine.map((r) => r[key])), median(loop.map((r) => r[key]))];
      return { engine: figure(ours), loop: figure(theirs), ratio: figure(ours / theirs) };
    };
    depths.push({ depth, prefill: compare('prefillTokensPerSecond'), decode: compare('decodeTokensPerSecond') });
  }
  return { rounds: ROUNDS, threads: ENGINE_THREADS, goal: 0.98, depths };
}

const run = promisify(execFile);

async function runLoop(depth: number): Promise<Rates> {
  const tool = inRepository('native/metal/build/cmake/tools/muser-decode-loop');
  const args = [
    '--depth',
    depth,
    '--seqs',
    1,
    '--decode',
    144,
    '--cells',
    cellsFor(depth),
    '--chunk',
    512,
    '--threads',
    ENGINE_THREADS,
  ];
  const { stdout } = await run(tool, [MUSE_NANO, ...args.map(String), '--json']);
  return JSON.parse(stdout) as Rates;
}

async function runEngine(depth: number): Promise<Rates> {
  const program = fileURLToPath(new URL('./decode-engine.js', import.meta.url));
  const { stdout } = await run(process.execPath, [program, String(depth), String(cellsFor(depth))]);
  return JSON.parse(stdout) as Rates;
}

/** Cells of the context: the prompt, the answer, rounded up as llama.cpp rounds. */
const cellsFor = (depth: number): number => Math.ceil((depth + 512) / 256) * 256;
