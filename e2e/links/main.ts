import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Report } from './inside.js';
import { describeLink, LINKS } from './link.js';
import { missing } from './requirements.js';
import { show } from './table.js';
import { TwoMachines } from './two-machines.js';

const INSIDE = fileURLToPath(new URL('inside.js', import.meta.url));
/** Nothing was tested: this machine cannot. */
const EXIT_MISSING = 77;
const STOP_LIMIT_MS = 20_000;

const USAGE = `usage: npm run test:links -- [--json] [LINK...]

Hands prompts over links that are as slow and as bad as real ones: producer and decoder run in two network
namespaces of this machine with a shaped cable between them. Takes three to five minutes. Needs root and iproute2.

links:
${LINKS.map((link) => `  ${link.name.padEnd(5)} ${describeLink(link)}`).join('\n')}

exit codes: 0 all is right, 1 a cell failed, 2 wrong usage, ${EXIT_MISSING} this machine lacks something, 130 Ctrl-C
`;

async function main(args: string[]): Promise<number> {
  const names = args.filter((argument) => argument !== '--json');
  const unknown = names.filter((name) => !LINKS.some((link) => link.name === name));
  if (unknown.length > 0) {
    const isHelp = names.includes('--help');
    process.stderr.write(`${isHelp ? '' : `no such link: ${unknown.join(', ')}\n`}${USAGE}`);
    return isHelp ? 0 : 2;
  }
  const lacks = await missing();
  if (lacks.length > 0) {
    process.stderr.write(`links cannot be tested here; missing:\n${lacks.map((what) => `  ${what}\n`).join('')}`);
    return EXIT_MISSING;
  }
  const interrupt = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => interrupt.abort());
  const folder = await mkdtemp(join(tmpdir(), 'muser-links-'));
  const machines = await TwoMachines.create();
  try {
    const report = await runInside(machines, [folder, ...names], interrupt.signal);
    if (interrupt.signal.aborted) return 130;
    if (report === null) return 1;
    process.stdout.write(`${args.includes('--json') ? JSON.stringify(report, null, 2) : show(report)}\n`);
    return report.cells.every(({ problem }) => problem === null) ? 0 : 1;
  } finally {
    await machines.remove();
    // A process that was killed may still be writing its last words.
    await rm(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

/** @returns null when it did not come to its end */
async function runInside(machines: TwoMachines, args: string[], signal: AbortSignal): Promise<Report | null> {
  const [command = '', ...prefix] = machines.on('mac');
  // In a group of its own: Ctrl-C in the terminal reaches only this process, which ends the other one in order.
  const child = spawn(command, [...prefix, process.execPath, INSIDE, String(process.pid), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
    detached: true,
  });
  const exited = once(child, 'exit');
  const output: Buffer[] = [];
  child.stdout.on('data', (data: Buffer) => output.push(data));
  let limit: NodeJS.Timeout | undefined;
  const stop = (): void => {
    child.kill('SIGTERM');
    limit = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS);
  };
  if (signal.aborted) stop();
  signal.addEventListener('abort', stop, { once: true });
  const [code] = (await exited) as [number | null];
  clearTimeout(limit);
  return code === 0 ? (JSON.parse(Buffer.concat(output).toString()) as Report) : null;
}

process.exitCode = await main(process.argv.slice(2));
