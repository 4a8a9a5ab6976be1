import { setTimeout as sleep } from 'node:timers/promises';
import type http from 'node:http';
import { CliError, EXIT } from '../../exit.js';
import type { Expected, PartFile } from './part-file.js';
import { HttpStatusError, openWeb, type WebSource } from './source.js';

/** How often a download is tried again. Attempts count from the last one that brought `progressBytes` or more. */
export interface RetryPolicy {
  attempts: number;
  firstDelayMs: number;
  maxDelayMs: number;
  progressBytes: number;
  /** Longest silence of a server before the connection is given up. */
  stallMs: number;
}

export const DEFAULT_RETRIES: RetryPolicy = {
  attempts: 6,
  firstDelayMs: 500,
  maxDelayMs: 30_000,
  progressBytes: 1 << 20,
  stallMs: 30_000,
};

export interface Download {
  source: WebSource;
  url: URL;
  /** As it is shown to the user. */
  label: string;
  expected: Expected;
  part: PartFile;
  retries: RetryPolicy;
  signal: AbortSignal;
  /** Bytes that came, negative when some are thrown away. */
  onBytes: (delta: number) => void;
  /** Tells that the download is tried again, and why. */
  onRetry: (reason: string) => void;
}

/** The server has other bytes than the manifest: another size, or another digest. */
class WrongBytesError extends Error {
  override readonly name = 'WrongBytesError';
}

/**
 * Fills the part until it matches. Broken connections are resumed; wrong bytes are thrown away and fetched once more.
 *
 * @throws CliError with what the server did; the part keeps what is there, unless it was wrong.
 */
export async function download(job: Download): Promise<void> {
  for (let fetches = 1; ; fetches += 1) {
    try {
      await fillPart(job);
      if (job.part.matches()) return;
      throw new WrongBytesError('the bytes have another SHA-256 than the manifest says');
    } catch (error) {
      if (!(error instanceof WrongBytesError)) throw error;
      await startAgain(job);
      if (fetches === 2) throw wrongBytes(job, error);
      job.onRetry(`${job.label}: ${error.message}; fetched once more`);
    }
  }
}

async function fillPart(job: Download): Promise<void> {
  const { part, expected, retries, signal } = job;
  // Progress is what goes beyond the farthest byte so far: a server that always starts again makes none.
  let farthest = part.length;
  for (let failures = 0; part.length < expected.size;) {
    try {
      await fetchRest(job);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof WrongBytesError || error instanceof CliError) throw error;
      failures = part.length - farthest >= retries.progressBytes ? 1 : failures + 1;
      farthest = Math.max(farthest, part.length);
      if (!mayRetry(error) || failures >= retries.attempts) throw unavailable(job, error);
      const asked = error instanceof HttpStatusError ? error.retryAfterMs : null;
      const delay = Math.min(retries.firstDelayMs * 2 ** (failures - 1), retries.maxDelayMs);
      job.onRetry(`${job.label}: ${describe(error)}; going on at byte ${part.length}`);
      // Half of the delay is random, so that many clients of one server do not come back at once.
      await sleep(asked ?? delay / 2 + (Math.random() * delay) / 2, undefined, { signal });
    }
  }
}

/** One request for what is missing. Throws when the answer ends before the file does. */
async function fetchRest(job: Download): Promise<void> {
  const { part, expected } = job;
  const stall = new StallTimer(job.retries.stallMs);
  const signal = AbortSignal.any([job.signal, stall.signal]);
  try {
    const headers: Record<string, string> = part.length > 0 ? { range: `bytes=${part.length}-` } : {};
    const response = await openRange(job, headers, signal);
    await acceptAnswer(job, response);
    for await (const bytes of response as AsyncIterable<Buffer>) {
      stall.restart();
      if (part.length + bytes.length > expected.size) {
        response.destroy();
        throw new WrongBytesError(`it has more than the ${expected.size} bytes of the manifest`);
      }
      await part.append(bytes);
      job.onBytes(bytes.length);
    }
  } catch (error) {
    throw stall.signal.aborted ? (stall.signal.reason as Error) : error;
  } finally {
    stall.stop();
  }
  if (part.length < expected.size) throw new Error(`the answer ended after ${part.length} of ${expected.size} bytes`);
}

async function openRange(
  job: Download,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<http.IncomingMessage> {
  try {
    return await openWeb(job.source, job.url, headers, signal);
  } catch (error) {
    // The file ends before what we have: it cannot be the one of the manifest, or an earlier answer was too long.
    if (error instanceof HttpStatusError && error.status === 416) {
      throw new WrongBytesError('the server says that the file is shorter');
    }
    throw error;
  }
}

/** Checks what the headers promise, and starts the part again when the server sends the file from its beginning. */
async function acceptAnswer(job: Download, response: http.IncomingMessage): Promise<void> {
  const { part, expected } = job;
  const { 'content-encoding': encoding, 'content-range': range, 'content-length': length } = response.headers;
  let problem: string | null = null;
  let total: number | null = null;
  if (encoding !== undefined && encoding !== 'identity') problem = `it comes encoded as ${encoding}`;
  if (response.statusCode === 206) {
    const match = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(range ?? '');
    if (match === null || Number(match[1]) !== part.length) problem = 'the server sent another range than it was asked for';
    else if (match[2] !== '*') total = Number(match[2]);
  } else {
    total = length === undefined ? null : Number(length);
  }
  if (problem === null && total !== null && total !== expected.size) {
    problem = `it has ${total} bytes, the manifest says ${expected.size}`;
  }
  if (problem !== null) {
    response.destroy();
    throw new WrongBytesError(problem);
  }
  if (response.statusCode === 200) await startAgain(job);
}

async function startAgain(job: Download): Promise<void> {
  job.onBytes(-job.part.length);
  await job.part.reset();
}

/** Aborts when nothing came for too long. */
class StallTimer {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout;

  constructor(milliseconds: number) {
    this.#timer = setTimeout(() => {
      this.#controller.abort(new Error(`nothing came for ${milliseconds / 1000} s`));
    }, milliseconds);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  restart(): void {
    this.#timer.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

function mayRetry(error: unknown): boolean {
  return !(error instanceof HttpStatusError) || error.status >= 500 || error.status === 429 || error.status === 408;
}

function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function wrongBytes(job: Download, cause: WrongBytesError): CliError {
  return new CliError(EXIT.failed, 'DIGEST_MISMATCH', `${job.label} from ${job.url.host}: ${cause.message}, twice`, {
    advice: 'Nothing of it was kept. Another source may have the right file (--from).',
    cause,
  });
}

function unavailable(job: Download, cause: unknown): CliError {
  const message = `${job.label} cannot be fetched from ${job.url.host}: ${describe(cause)}`;
  const status = cause instanceof HttpStatusError ? cause.status : null;
  if (status === 401 || status === 403) {
    const advice = 'The repository may need an account: put a token that may read it into MUSER_HUB_TOKEN.';
    return new CliError(EXIT.failed, 'PERMISSION_DENIED', message, { advice, cause });
  }
  if (status === 404 || status === 410) return new CliError(EXIT.failed, 'NOT_FOUND', message, { cause });
  const advice = 'Pull again: it goes on where it stopped.';
  return new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', message, { advice, cause });
}
