import { decodeBenchmark } from './decode.js';
import { eventLoopBenchmark } from './event-loop.js';
import { installBenchmark } from './install.js';
import { machine } from './machine.js';
import { placementBenchmark } from './placement.js';
import { transportBenchmark, type TransportFigures } from './transport.js';
import { transportTable } from './transport-table.js';
import { vllmBenchmark } from './vllm.js';

/** What each benchmark measures, in the order in which they run. See bench/README.md for the method. */
const BENCHMARKS: Record<string, () => Promise<object>> = {
  decode: decodeBenchmark,
  install: installBenchmark,
  'event-loop': eventLoopBenchmark,
  transport: transportBenchmark,
  placement: placementBenchmark,
  vllm: vllmBenchmark,
};

/** The same for people. */
const TABLES: Record<string, (result: object) => string> = {
  transport: (result) => transportTable(result as TransportFigures),
};

const USAGE = `usage: npm run bench -- [--json] [NAME...]

Runs the benchmarks (${Object.keys(BENCHMARKS).join(', ')}) one after another and prints one JSON object.
Every figure that is compared is a ratio of two things measured in the same run. Some print a table as well, on standard
error; not with --json.

examples:
  npm run bench
  npm run bench -- install event-loop
`;

async function main(args: string[]): Promise<number> {
  const names = args.filter((argument) => argument !== '--json');
  const unknown = names.filter((name) => !(name in BENCHMARKS));
  if (unknown.length > 0) {
    process.stderr.write(`${names.includes('--help') ? '' : `unknown benchmark: ${unknown.join(', ')}\n`}${USAGE}`);
    return names.includes('--help') ? 0 : 2;
  }
  const results: Record<string, object> = {};
  for (const [name, run] of Object.entries(BENCHMARKS)) {
    if (names.length > 0 && !names.includes(name)) continue;
    process.stderr.write(`bench: ${name}\n`);
    const result = await run();
    results[name] = result;
    if (!args.includes('--json')) process.stderr.write(TABLES[name]?.(result) ?? '');
  }
  process.stdout.write(`${JSON.stringify({ machine: machine(), results }, null, 2)}\n`);
  return 0;
}

process.exitCode = await main(process.argv.slice(2));
