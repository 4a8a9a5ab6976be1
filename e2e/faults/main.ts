// `npm run test:faults`: what becomes of a hand-off when something breaks, as a table. See docs/TESTING.md.
import { execFileSync } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { inCheckout } from '../test/support/checkout.js';
import { runBackend } from './backend-run.js';
import { outcomeText, type Cell } from './cells.js';
import { allCells, randomCells } from './matrix.js';
import { parseOptions, USAGE, UsageError, type Options } from './options.js';
import { countOf, machine, toJson, toMarkdown, totals, triedAgain, type Result, type Run } from './report.js';
import type { System } from './system.js';

const EXIT = { failed: 1, usage: 2, interrupted: 130 } as const;
const REPORT = inCheckout('e2e/faults/last-run');

const say = (text: string): void => void process.stderr.write(`${text}\n`);

async function main(options: Options): Promise<number> {
  const cells = chosenCells(options);
  if (cells.length === 0) throw new UsageError(`no cell is called like "${options.only.join('" or "')}"`);
  if (process.platform !== 'linux') throw new UsageError('the matrix looks into /proc: it needs Linux');
  const stop = new AbortController();
  const systems = new Set<System>();
  const dispose = listenForInterrupts(stop, systems);
  try {
    const run = await runCells(cells, options, stop.signal, systems);
    if (stop.signal.aborted) return EXIT.interrupted;
    await publish(run, options);
    return countOf(run, 'failed') === 0 && countOf(run, 'passed') > 0 ? 0 : EXIT.failed;
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    return EXIT.interrupted;
  } finally {
    dispose();
  }
}

function chosenCells({ backends, random, seed, only }: Options): Cell[] {
  const every = [...allCells(), ...backends.flatMap((backend) => randomCells(backend, random, seed))];
  const isWanted = (id: string): boolean => only.length === 0 || only.some((text) => id.includes(text));
  return every.filter(({ id, backend }) => backends.includes(backend) && isWanted(id));
}

async function runCells(
  cells: readonly Cell[],
  options: Options,
  signal: AbortSignal,
  systems: Set<System>,
): Promise<Run> {
  const { seed, lanes } = options;
  const startedAt = performance.now();
  const results: Result[] = [];
  say(`${cells.length} cells, seed ${seed}`);
  const onResult = (result: Result): void => {
    results.push(result);
    say(`${String(results.length).padStart(3)}/${cells.length} ${lineOf(result)}`);
  };
  for (const backend of options.backends) {
    const own = cells.filter((cell) => cell.backend === backend);
    if (own.length === 0 || signal.aborted) continue;
    if (backend === 'vllm') installVllm();
    const shared = { backend, cells: own, seed, signal, onResult, say, systems };
    await runBackend({ ...shared, lanes: backend === 'llama' ? lanes : 1 });
  }
  const order = new Map(cells.map((cell, index) => [cell, index]));
  results.sort((a, b) => (order.get(a.cell) ?? 0) - (order.get(b.cell) ?? 0));
  return { seed, seconds: (performance.now() - startedAt) / 1_000, results };
}

function lineOf({ cell, verdict, outcome, reason, seconds }: Result): string {
  const words = { passed: 'ok     ', failed: 'FAILED ', 'not run': 'not run' };
  const what = outcome === null ? (reason ?? '') : outcomeText(outcome);
  return `${words[verdict]} ${cell.id}: ${what} (${seconds.toFixed(1)} s)`;
}

function installVllm(): void {
  execFileSync(process.execPath, [inCheckout('scripts/vllm-env.mjs'), '--quiet'], { stdio: ['ignore', 2, 2] });
}

/** The first Ctrl-C ends what runs in order, the second at once. */
function listenForInterrupts(stop: AbortController, systems: ReadonlySet<System>): () => void {
  const onSignal = (): void => {
    if (!stop.signal.aborted) {
      say('interrupted: ending all processes');
      return stop.abort();
    }
    for (const system of systems) system.kill();
    process.exit(EXIT.interrupted);
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, onSignal);
  return () => {
    for (const signal of signals) process.off(signal, onSignal);
  };
}

/** The table goes to people and, when every cell was run, into the repository. */
async function publish(run: Run, options: Options): Promise<void> {
  const json = JSON.stringify(toJson(run), null, 2);
  const matrix = toMarkdown(run);
  const summary = summaryOf(run);
  if (options.json) process.stdout.write(`${json}\n`);
  else process.stdout.write(`${matrix}\n\n${summary}\n${totals(run)}\n`);
  if (options.only.length > 0 || options.random > 0 || options.backends.length === 1) return;
  await writeFile(`${REPORT}.json`, `${json}\n`);
  await writeFile(`${REPORT}.md`, `# The last run of the fault matrix\n\n${summary}\n\n${matrix}\n`);
}

function summaryOf(run: Run): string {
  const { processor, cores, memoryGiB } = machine();
  const further: string[] = [];
  const notRun = countOf(run, 'not run');
  if (notRun > 0) further.push(`, ${notRun} not run`);
  const again = triedAgain(run);
  if (again > 0) further.push(`, ${again} at the second try`);
  const counted = `${run.results.length} cells: ${totals(run)}${further.join('')}`;
  return `${counted}. Seed ${run.seed}, ${run.seconds.toFixed(0)} s on ${cores} cores of ${processor}, ${memoryGiB} GiB.`;
}

try {
  const options = parseOptions(process.argv.slice(2));
  if (options === null) process.stdout.write(USAGE);
  else process.exitCode = await main(options);
} catch (error) {
  say(error instanceof UsageError ? `${error.message}\n\n${USAGE}` : String(error));
  process.exitCode = error instanceof UsageError ? EXIT.usage : EXIT.failed;
}
