import { constants, createReadStream, fstatSync, openSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import { usageError } from '../exit.js';
import { isMissing } from '../files.js';
import type { StatusOutput } from '../terminal.js';

/**
 * More text than the longest prompt (131,072 tokens) can have; it bounds memory before anything is read. A decoder takes
 * as much (docs/LIMITS.md).
 */
export const MAX_DOCUMENT_BYTES = 4 * 1024 * 1024;

/** How long a socket that somebody left open as standard input may say nothing before it is taken for empty. */
const SOCKET_PATIENCE_MS = 3_000;
const STDIN_NOTICE_MS = 2_000;

/** Documents first, then the question, in one message: the form that the model was trained on. */
export function composeMessage(documents: readonly string[], question: string): string {
  return [...documents.map((text) => text.replace(/^(?:[ \t]*\r?\n)+|\s+$/g, '')), question.trim()]
    .filter((part) => part !== '')
    .join('\n\n');
}

/** Reads the -f files in their order, then standard input when something is piped into it. */
export async function readDocuments(
  files: readonly string[],
  stdin: Readable & { fd?: number },
  output: StatusOutput,
  signal: AbortSignal,
): Promise<string[]> {
  const budget = { left: MAX_DOCUMENT_BYTES };
  const documents: string[] = [];
  for (const file of files) documents.push(await readTextFile(file, budget, signal));
  const piped = await readStdin(stdin, budget, output, signal);
  if (piped !== null) documents.push(piped);
  return documents;
}

async function readTextFile(path: string, budget: { left: number }, signal: AbortSignal): Promise<string> {
  if (path === '') throw usageError('-f needs the path of a file');
  try {
    const found = await stat(path);
    if (found.isDirectory()) throw usageError(`${path} is a folder`, 'Give each file with an -f of its own.');
    if (found.size > budget.left) throw tooLarge(path);
    const stream = found.isFIFO() ? openPipe(path) : createReadStream(path);
    return asText(path, await readLimited(stream, path, budget, signal));
  } catch (error) {
    if (isMissing(error)) throw usageError(`there is no file ${path}`);
    const code = (error as NodeJS.ErrnoException).code;
    if (code === 'EACCES' || code === 'EPERM') throw usageError(`${path} may not be read`);
    throw error;
  }
}

/** Opening a pipe that nobody writes to would block a thread for good, which no signal and no deadline could end. */
function openPipe(path: string): Readable {
  return new Socket({ fd: openSync(path, constants.O_RDONLY | constants.O_NONBLOCK), readable: true, writable: false });
}

type StdinKind = 'none' | 'pipe' | 'socket';

/** A terminal or /dev/null is no document; a pipe or a file is one; a socket may be just an open end of a parent process. */
function stdinKind(fd: number): StdinKind {
  try {
    const found = fstatSync(fd);
    if (found.isFIFO() || found.isFile()) return 'pipe';
    return found.isSocket() ? 'socket' : 'none';
  } catch {
    return 'none';
  }
}

async function readStdin(
  stdin: Readable & { fd?: number },
  budget: { left: number },
  output: StatusOutput,
  signal: AbortSignal,
): Promise<string | null> {
  const kind = stdinKind(stdin.fd ?? 0);
  if (kind === 'none') return null;
  const notice = setTimeout(() => output.line('waiting for standard input to end'), STDIN_NOTICE_MS);
  const silent = new AbortController();
  const patience = setTimeout(() => kind === 'socket' && silent.abort(), SOCKET_PATIENCE_MS);
  stdin.once('readable', () => clearTimeout(patience));
  try {
    const both = AbortSignal.any([signal, silent.signal]);
    const bytes = await readLimited(stdin, 'standard input', budget, both);
    return bytes.length === 0 ? null : asText('standard input', bytes);
  } catch (error) {
    if (signal.aborted || !silent.signal.aborted) throw error;
    output.always('standard input said nothing: going on without it (use </dev/null to skip it)');
    return null;
  } finally {
    clearTimeout(notice);
    clearTimeout(patience);
    stdin.destroy();
  }
}

async function readLimited(
  stream: Readable,
  name: string,
  budget: { left: number },
  signal: AbortSignal,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  const stop = (): void => {
    stream.destroy(signal.reason instanceof Error ? signal.reason : new Error('aborted'));
  };
  signal.throwIfAborted();
  signal.addEventListener('abort', stop, { once: true });
  try {
    for await (const part of stream as AsyncIterable<Buffer>) {
      budget.left -= part.length;
      if (budget.left < 0) throw tooLarge(name);
      parts.push(part);
    }
  } finally {
    signal.removeEventListener('abort', stop);
    stream.destroy();
  }
  signal.throwIfAborted();
  return Buffer.concat(parts);
}

function asText(name: string, bytes: Buffer): string {
  if (bytes.includes(0)) throw notText(name);
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw notText(name);
  }
}

function notText(name: string): Error {
  return usageError(`${name} is not UTF-8 text`, 'Convert it first, for example with iconv or pdftotext.');
}

function tooLarge(name: string): Error {
  return usageError(
    `${name} is too large: the documents of one question may have ${MAX_DOCUMENT_BYTES / 1024 / 1024} MiB together`,
  );
}
