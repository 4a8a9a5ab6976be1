import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { ErrorCode } from '@muser/protocol';
import { z } from 'zod';
import { CliError, EXIT } from '../exit.js';
import { ENTRIES } from '../system/paths.js';
import { childEnvironment, openLog } from '../system/process.js';
import { printable } from '../terminal.js';
import { recordSchema, type SignedRecord } from './schema.js';

/** The largest models on the slowest machine; each step has a deadline of its own in the child. */
const LIMIT_MS = 4 * 3_600_000;
/** Longer than the child needs to free both engines. */
const STOP_LIMIT_MS = 35_000;

const progressSchema = z.discriminatedUnion('stage', [
  z.object({ stage: z.literal('engine'), name: z.string(), ms: z.number() }),
  z.object({ stage: z.literal('loaded'), backend: z.string(), model: z.string() }),
  z.object({ stage: z.literal('prompt'), number: z.number(), of: z.number(), tokens: z.number() }),
]);
export type Progress = z.infer<typeof progressSchema>;

const lineSchema = z.union([
  z.object({ progress: progressSchema }),
  z.object({ result: recordSchema }),
  z.object({ error: z.object({ code: z.string(), message: z.string() }) }),
]);

export interface QualifierSpec {
  args: readonly string[];
  /** Variables beside those of childEnvironment. */
  environment?: Readonly<Record<string, string>>;
  /** Its standard error is appended there; without one it is dropped. */
  logFile?: string;
  onProgress?: (progress: Progress) => void;
}

/** Runs the producer's program to its end. When the signal aborts it is asked to end, waited for, and killed when late. */
export async function runQualifier(spec: QualifierSpec, signal: AbortSignal): Promise<SignedRecord> {
  signal.throwIfAborted();
  const log = spec.logFile === undefined ? null : await openLog(spec.logFile);
  // In a process group of its own, so that a Ctrl-C in the terminal reaches it through us alone.
  const child = spawn(process.execPath, [ENTRIES.producer, ...spec.args], {
    stdio: ['pipe', 'pipe', log?.fd ?? 'ignore'],
    detached: true,
    env: { ...childEnvironment(process.env), ...spec.environment },
  });
  const ended = once(child, 'exit');
  // Awaited only after its output has ended, and it may not even start.
  ended.catch(() => undefined);
  await log?.close();
  const { stdin, stdout } = child;
  if (stdin === null || stdout === null) throw new CliError(EXIT.failed, 'INTERNAL', 'the producer has no pipes');
  stdin.on('error', () => undefined);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(LIMIT_MS)]);
  let killer: NodeJS.Timeout | undefined;
  const onStop = (): void => {
    child.kill('SIGTERM');
    killer = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS);
  };
  limit.addEventListener('abort', onStop, { once: true });
  if (limit.aborted) onStop();
  try {
    let last: z.infer<typeof lineSchema> | null = null;
    for await (const text of createInterface({ input: stdout, crlfDelay: Infinity })) {
      const line = parseLine(text);
      if (line !== null && 'progress' in line) spec.onProgress?.(line.progress);
      else last = line ?? last;
    }
    await ended;
    signal.throwIfAborted();
    if (limit.aborted) throw late();
    return resultOf(last, spec.logFile);
  } finally {
    limit.removeEventListener('abort', onStop);
    clearTimeout(killer);
    child.kill('SIGKILL');
  }
}

function late(): CliError {
  return new CliError(
    EXIT.failed,
    'DEADLINE_EXCEEDED',
    `the qualification takes longer than ${LIMIT_MS / 3_600_000} h`,
  );
}

function parseLine(text: string): z.infer<typeof lineSchema> | null {
  try {
    return lineSchema.safeParse(JSON.parse(text)).data ?? null;
  } catch {
    return null;
  }
}

function resultOf(last: z.infer<typeof lineSchema> | null, logFile: string | undefined): SignedRecord {
  if (last !== null && 'result' in last) return last.result;
  const advice = logFile === undefined ? {} : { advice: `Its log is ${logFile}.` };
  if (last !== null && 'error' in last) {
    const { code, message } = last.error;
    const exitCode = code === 'CONFIG_INVALID' ? EXIT.usage : EXIT.failed;
    throw new CliError(exitCode, code as ErrorCode, printable(message), advice);
  }
  throw new CliError(EXIT.failed, 'INTERNAL', 'the qualification ended without a result', advice);
}
