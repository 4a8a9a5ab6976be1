import { randomInt } from 'node:crypto';
import { rmSync } from 'node:fs';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { inCheckout } from '../test/support/checkout.js';
import { Cleanups } from '../test/support/cleanups.js';
import { needleDocuments } from '../test/support/needles.js';
import { page } from './page.js';
import { plan } from './plan.js';
import { soak, type SoakReport } from './run.js';
import { Stand, type Backend } from './stand.js';
import { failures } from './verdict.js';

const LAST_RUN = 'e2e/soak/last-run.md';
/** A shorter run says little about leaks, and its page is not kept. */
const LEAST_KEPT_TRANSFERS = 500;
const MOST_SEEDS = 2 ** 31;

const USAGE = `usage: npm run soak -- [--transfers N] [--seed N] [--backend llama|vllm] [--json]

Asks a decoder N times (default ${LEAST_KEPT_TRANSFERS}), three at once, while its links to two producers fail at random, one
producer is killed now and then and clients leave. Says at the end whether an answer was wrong or never came, and
what each process holds in memory and descriptors. A run with the same seed draws the same transfers and faults; what
meets what depends on the machine. Linux only.

--transfers N    40 take about a minute, ${LEAST_KEPT_TRANSFERS} a quarter of an hour; from ${LEAST_KEPT_TRANSFERS} on the page is kept in ${LAST_RUN}
--backend vllm   the producer that lives on is vLLM (npm run vllm); the other one stays llama.cpp
--json           the report as JSON

exit codes: 0 passed, 1 failed, 2 wrong usage, 130 Ctrl-C
`;

interface Options {
  transfers: number;
  seed: number;
  backend: Backend;
  json: boolean;
}

const say = (text: string): void => void process.stderr.write(`soak: ${text}\n`);

/** @returns null when help was wanted */
function optionsOf(args: string[]): Options | null {
  const { values } = parseArgs({
    args,
    options: {
      transfers: { type: 'string', default: String(LEAST_KEPT_TRANSFERS) },
      seed: { type: 'string', default: String(randomInt(MOST_SEEDS)) },
      backend: { type: 'string', default: 'llama' },
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) return null;
  const [transfers, seed] = [Number(values.transfers), Number(values.seed)];
  if (!Number.isInteger(transfers) || transfers < 10) throw new Error('--transfers takes a whole number from 10 on');
  if (!Number.isInteger(seed) || seed < 0) throw new Error('--seed takes a whole number');
  const { backend } = values;
  if (backend !== 'llama' && backend !== 'vllm') throw new Error('--backend is llama or vllm');
  return { transfers, seed, backend, json: values.json };
}

async function run(
  { transfers, seed, backend }: Options,
  { folder, cleanups }: { folder: string; cleanups: Cleanups },
): Promise<SoakReport> {
  say(`seed ${seed}`);
  const planned = plan(transfers, seed);
  const documents = await needleDocuments(
    planned.map(({ tokens }) => tokens),
    seed,
  );
  const stand = await Stand.start(folder, backend, seed, cleanups);
  say('everything runs');
  return soak(stand, planned, { seed, backend, say, documents });
}

async function main(args: string[]): Promise<number> {
  let options: Options | null;
  try {
    options = optionsOf(args);
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${USAGE}`);
    return 2;
  }
  if (options === null) {
    process.stderr.write(USAGE);
    return 0;
  }
  const folder = await mkdtemp(join(tmpdir(), 'muser-soak-'));
  // A process that was killed may still be writing its last words. Not in steps: a set-up that goes on would come between.
  const removeFolder = (): void => rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  const cleanups = new Cleanups();
  let interrupted = false;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    // Not once(): execa ends this process at a signal that nobody listens to any more.
    process.on(signal, () => {
      interrupted = true;
      void cleanups.run().finally(() => {
        removeFolder();
        process.exit(130);
      });
    });
  }
  try {
    const report = await run(options, { folder, cleanups });
    const text = page(report);
    if (options.transfers >= LEAST_KEPT_TRANSFERS) await writeFile(inCheckout(LAST_RUN), text);
    process.stdout.write(options.json ? `${JSON.stringify(report, null, 2)}\n` : text);
    return failures(report).length === 0 ? 0 : 1;
  } catch (error) {
    // What runs fails when everything is stopped under it.
    if (interrupted) return 130;
    throw error;
  } finally {
    await cleanups.run();
    removeFolder();
  }
}

process.exitCode = await main(process.argv.slice(2));
