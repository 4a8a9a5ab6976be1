import { decodeBenchmark } from './decode.js';
import { eventLoopBenchmark } from './event-loop.js';
import { installBenchmark } from './install.js';
import { machine } from './machine.js';
import { placementBenchmark } from './placement.js';
import { transportBenchmark } from './transport.js';
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

const USAGE = `usage: npm run bench -- [NAME...]

Runs the benchmarks (${Object.keys(BENCHMARKS).join(', ')}) one after another and prints one JSON object.
Every figure that is compared is a ratio of two things measured in the same run.

examples:
  npm run bench
  npm run bench -- install event-loop
`;

async function main(names: string[]): Promise<number> {
  const unknown = names.filter((name) => !(name in BENCHMARKS));
  if (unknown.length > 0) {
    process.stderr.write(`${names.includes('--help') ? '' : `unknown benchmark: ${unknown.join(', ')}\n`}${USAGE}`);
    return names.includes('--help') ? 0 : 2;
  }
  const results: Record<string, object> = {};
  for (const [name, run] of Object.entries(BENCHMARKS)) {
    if (names.length > 0 && !names.includes(name)) continue;
    process.stderr.write(`bench: ${name}\n`);
    results[name] = await run();
  }
  process.stdout.write(`${JSON.stringify({ machine: machine(), results }, null, 2)}\n`);
  return 0;
}

process.exitCode = await main(process.argv.slice(2));
