import { parseArgs } from 'node:util';
import { decodeBenchmark } from './decode.js';
import { eventLoopBenchmark } from './event-loop.js';
import { installBenchmark } from './install.js';
import { machine } from './machine.js';
import { placementBenchmark } from './placement.js';
import { linkBenchmark, ratesBenchmark, type LinkFigures, type RateFigures } from './transport.js';
import { linkTable, ratesTable } from './transport-table.js';
import { vllmBenchmark } from './vllm.js';

interface Benchmark {
  run: (quick: boolean) => Promise<object>;
  /** The result for people. */
  table?: (result: object) => string;
}

/** In the order in which they run; `a:b` is a part of `a`. See bench/README.md for the method. */
const BENCHMARKS: Record<string, Benchmark> = {
  decode: { run: decodeBenchmark },
  install: { run: installBenchmark },
  'event-loop': { run: eventLoopBenchmark },
  'transport:rates': { run: ratesBenchmark, table: (result) => ratesTable(result as RateFigures) },
  'transport:link': { run: linkBenchmark, table: (result) => linkTable(result as LinkFigures) },
  placement: { run: placementBenchmark },
  vllm: { run: vllmBenchmark },
};

const USAGE = `usage: npm run bench -- [--json] [--quick] [NAME...]

Runs the benchmarks one after another and prints one JSON object: ${Object.keys(BENCHMARKS).join(', ')}.
transport is both of its parts. Every figure that is compared is a ratio of two things measured in the same run.

  --json   no tables; without it some benchmarks print one on standard error
  --quick  transport and placement in one short round: shows that they run, and the figures mean nothing

examples:
  npm run bench
  npm run bench -- install event-loop
  npm run bench -- transport >transport.json
`;

interface Arguments {
  json: boolean;
  quick: boolean;
  help: boolean;
  wanted: [name: string, benchmark: Benchmark][];
}

/** @throws TypeError that says what is wrong with them */
function readArguments(args: string[]): Arguments {
  const flag = { type: 'boolean', default: false } as const;
  const options = { json: flag, quick: flag, help: { ...flag, short: 'h' } } as const;
  const { values, positionals } = parseArgs({ args, allowPositionals: true, options });
  const belongs = (key: string, name: string): boolean => key === name || key.startsWith(`${name}:`);
  const unknown = positionals.filter((name) => !Object.keys(BENCHMARKS).some((key) => belongs(key, name)));
  if (unknown.length > 0) throw new TypeError(`unknown benchmark: ${unknown.join(', ')}`);
  const wanted = Object.entries(BENCHMARKS).filter(
    ([key]) => positionals.length === 0 || positionals.some((name) => belongs(key, name)),
  );
  return { ...values, wanted };
}

async function main({ json, quick, help, wanted }: Arguments): Promise<number> {
  if (help) {
    process.stdout.write(USAGE);
    return 0;
  }
  const results: Record<string, object> = {};
  let status = 0;
  for (const [name, { run, table }] of wanted) {
    process.stderr.write(`bench: ${name}\n`);
    try {
      const result = await run(quick);
      results[name] = result;
      if (!json) process.stderr.write(table?.(result) ?? '');
    } catch (error) {
      // What the others measure is kept.
      status = 1;
      results[name] = { error: String(error) };
      process.stderr.write(`bench: ${name} failed: ${error instanceof Error ? error.stack : String(error)}\n`);
    }
  }
  process.stdout.write(`${JSON.stringify({ machine: machine(), quick, results }, null, 2)}\n`);
  return status;
}

function argumentsOrUsage(args: string[]): Arguments | null {
  try {
    return readArguments(args);
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n${USAGE}`);
    return null;
  }
}

const given = argumentsOrUsage(process.argv.slice(2));
process.exitCode = given === null ? 2 : await main(given);
