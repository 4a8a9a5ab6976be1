import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { allCells, outcomeText, type Cell } from './cells.js';
import { Questions } from './questions.js';
import { CellRunner } from './run-cell.js';
import { System, type Backend } from './system.js';

async function runBackend(backend: Backend, cells: readonly Cell[], signal: AbortSignal): Promise<number> {
  const root = await mkdtemp(join(tmpdir(), 'muser-faults-'));
  let failed = 0;
  const system = await System.start(backend, root, signal);
  process.stderr.write(`started in ${root}\n`);
  try {
    const questions = new Questions(1000, () => system.url('bystander'), signal);
    const runner = new CellRunner(system, questions, signal);
    await runner.warmUp();
    for (const cell of cells) {
      signal.throwIfAborted();
      const startedAt = performance.now();
      let said: string;
      try {
        said = `ok    ${cell.id}: ${outcomeText(await runner.run(cell))}`;
      } catch (error) {
        failed += 1;
        said = `FAIL  ${cell.id}: ${error instanceof Error ? error.message : String(error)}`;
      }
      process.stderr.write(`${said} (${((performance.now() - startedAt) / 1_000).toFixed(1)} s)\n`);
    }
  } finally {
    await system.close();
    if (failed === 0) await rm(root, { recursive: true, force: true });
  }
  return failed;
}

const filter = process.argv[2] ?? '';
const cells = allCells().filter(({ id }) => id.includes(filter));
const stop = new AbortController();
process.once('SIGINT', () => stop.abort());
const failed = await runBackend('llama', cells, stop.signal);
process.stdout.write(`${cells.length - failed} passed, ${failed} failed\n`);
process.exitCode = failed === 0 ? 0 : 1;
