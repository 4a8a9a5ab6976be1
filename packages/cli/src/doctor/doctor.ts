import { EXIT } from '../exit.js';
import { listenForInterrupts } from '../signals.js';
import { decoderUrl, readEndpoints, stateLayout, stateRoot } from '../state.js';
import { printable, StatusOutput } from '../terminal.js';
import { warning, type Check, type CheckStatus } from './check.js';
import { checkAddon, checkDisk, checkModel, checkNode, checkPlatform } from './machine-checks.js';
import { checkCoordinator, checkDecoder } from './network-checks.js';
import { checkCertificates, checkStateFolder } from './state-checks.js';

export interface DoctorOptions {
  state: string | undefined;
  url: string | undefined;
  model: string;
  json: boolean;
}

/** Looks at everything that muser needs. Returns the exit code: EXIT.failed when something is broken. */
export async function doctor(options: DoctorOptions): Promise<number> {
  const interrupts = listenForInterrupts();
  try {
    const checks = await runChecks(options, interrupts.signal);
    const healthy = checks.every(({ status }) => status !== 'failed');
    if (options.json) process.stdout.write(`${JSON.stringify({ ok: healthy, checks })}\n`);
    else print(checks);
    return healthy ? EXIT.ok : EXIT.failed;
  } finally {
    interrupts.dispose();
  }
}

async function runChecks(options: DoctorOptions, signal: AbortSignal): Promise<Check[]> {
  const layout = stateLayout(stateRoot(options.state, process.env));
  const endpoints = await readEndpoints(layout);
  const checks = [
    checkNode(),
    checkPlatform(),
    await checkAddon(),
    await checkModel(options.model),
    await checkStateFolder(layout),
    ...(await checkCertificates(layout)),
    await checkDisk(layout.root),
  ];
  // Where nothing was started, nothing can be expected to answer.
  if (endpoints === null && options.url === undefined) {
    checks.push(warning('system', 'not running with this state folder', 'Start it with `muser dev`.'));
    return checks;
  }
  checks.push(await checkDecoder(await decoderUrl(options, process.env), signal));
  if (endpoints !== null) checks.push(await checkCoordinator(endpoints.coordinator, layout, signal));
  return checks;
}

function print(checks: readonly Check[]): void {
  const output = new StatusOutput(process.stdout, { quiet: false, env: process.env });
  const marks: Record<CheckStatus, string> = {
    ok: output.paint('green', 'ok     '),
    warning: output.paint('yellow', 'warning'),
    failed: output.paint('red', 'failed '),
  };
  const width = Math.max(...checks.map(({ name }) => name.length));
  for (const { name, status, detail, advice } of checks) {
    output.always(`${marks[status]}  ${name.padEnd(width)}  ${printable(detail)}`);
    if (advice !== null) output.always(`${' '.repeat(width + 11)}-> ${printable(advice)}`);
  }
}
