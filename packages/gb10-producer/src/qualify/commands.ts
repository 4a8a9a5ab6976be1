import { MuserError } from '@muser/protocol';
import {
  type Command,
  createLogger,
  describeError,
  ensurePrivateFolder,
  EXIT,
  flushLogger,
  loadConfig,
  prepareResultFile,
  printReady,
  readSmallFile,
  writeFileAtomic,
} from '@muser/service-kit';

import { ENV_PREFIX, producerConfigSchema } from '../config.js';
import { MAX_RECORD_BYTES, openRecord, RECORD_FILE, sealRecord, type VerifiedRecord } from './record.js';
import { runQualification } from './run.js';
import { recordSigner } from './signer.js';

/** Exit codes of an end by signal: 128 and its number. */
const SIGNALS = { SIGINT: 130, SIGTERM: 143 } as const;
type StopSignal = keyof typeof SIGNALS;

/**
 * `qualify run` and `qualify verify`. Each prints JSON lines on standard output: of the run, `{"progress"}` as it goes;
 * then one line that is the last, `{"result"}` or `{"error"}`.
 */
export const qualifyCommands: readonly Command[] = [
  {
    words: ['qualify', 'run'],
    flags: ['config', 'gguf', 'out'],
    run: ({ config = '', gguf = '', out = '' }) => reported((signal) => run({ config, gguf, out }, signal)),
  },
  {
    words: ['qualify', 'verify'],
    flags: ['file'],
    run: ({ file = '' }) => reported(() => verify(file)),
  },
];

async function run(files: { config: string; gguf: string; out: string }, signal: AbortSignal): Promise<number> {
  const config = await loadConfig(producerConfigSchema, {
    file: files.config,
    env: process.env,
    envPrefix: ENV_PREFIX,
  });
  const logger = createLogger('producer', config.logLevel);
  const unfollow = config.exitWithParent ? followParent() : () => undefined;
  try {
    // First, because what comes next takes long: that the record can be signed, and written.
    await ensurePrivateFolder(config.stateDir);
    const signer = await recordSigner(config.stateDir);
    await prepareResultFile(files.out, RECORD_FILE);
    const record = await runQualification({
      config,
      gguf: files.gguf,
      logger,
      signal,
      onProgress: (progress) => printReady({ progress }),
    });
    const content = sealRecord(record, signer);
    // Once more: hours may have passed.
    await prepareResultFile(files.out, RECORD_FILE);
    await writeFileAtomic(files.out, content, 0o644);
    return told(openRecord(content));
  } finally {
    unfollow();
    await flushLogger(logger);
  }
}

async function verify(path: string): Promise<number> {
  const content = await readSmallFile(path, MAX_RECORD_BYTES);
  if (content === null) throw new MuserError('NOT_FOUND', `there is no ${path}`);
  return told(openRecord(content));
}

function told(result: VerifiedRecord): number {
  printReady({ result });
  return result.record.verdict === 'passed' ? EXIT.ok : EXIT.failed;
}

/** The exit code of `work`, which gets a signal that SIGINT and SIGTERM abort. What it throws is the last line. */
async function reported(work: (signal: AbortSignal) => Promise<number>): Promise<number> {
  const stop = new AbortController();
  let stoppedBy: StopSignal | null = null;
  const onSignal = (name: StopSignal): void => {
    if (stoppedBy !== null) process.exit(SIGNALS[name]);
    stoppedBy = name;
    stop.abort(new MuserError('CANCELLED', `stopped by ${name}`));
  };
  const names = Object.keys(SIGNALS) as StopSignal[];
  for (const name of names) process.on(name, onSignal);
  // Whoever read the output may be gone, and closing goes on.
  process.stdout.on('error', () => undefined);
  try {
    return await work(stop.signal);
  } catch (error) {
    const { code, message } = describeError(error);
    printReady({ error: { code, message } });
    if (stoppedBy !== null) return SIGNALS[stoppedBy];
    return code === 'CONFIG_INVALID' ? EXIT.usage : EXIT.failed;
  } finally {
    for (const name of names) process.off(name, onSignal);
  }
}

/** Ends like a SIGTERM when standard input ends: whoever started this is gone. */
function followParent(): () => void {
  const onGone = (): void => void process.kill(process.pid, 'SIGTERM');
  process.stdin.once('end', onGone).once('error', onGone).resume();
  return () => {
    process.stdin.off('end', onGone).off('error', onGone).pause();
  };
}
