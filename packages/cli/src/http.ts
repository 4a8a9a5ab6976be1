import http from 'node:http';
import https from 'node:https';
import { CliError, EXIT } from './exit.js';

const CONNECT_TIMEOUT_MS = 5_000;
const MAX_BODY_BYTES = 4 * 1024 * 1024;

export interface HttpRequest {
  method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  url: URL;
  headers?: Record<string, string>;
  /** Sent as JSON. */
  json?: unknown;
  signal: AbortSignal;
}

/** Nothing listens there, or it cannot be reached: told apart from a request that failed after the connection stood. */
export class UnreachableError extends Error {
  override readonly name = 'UnreachableError';
}

/** Only what was answered within the signal's time; the body is still to be read. Destroying it cancels the request. */
export function openRequest(request: HttpRequest): Promise<http.IncomingMessage> {
  const { url, signal } = request;
  const body = request.json === undefined ? null : Buffer.from(JSON.stringify(request.json));
  const headers: Record<string, string> = { accept: 'application/json, text/event-stream', ...request.headers };
  if (body !== null) {
    headers['content-type'] = 'application/json';
    headers['content-length'] = String(body.length);
  }
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    let connected = false;
    const transport = url.protocol === 'https:' ? https : http;
    // No agent: a kept-alive socket could die between two requests and fail the second one.
    const call = transport.request(url, { method: request.method, headers, agent: false });
    const onAbort = (): void => {
      call.destroy(signal.reason instanceof Error ? signal.reason : new Error('aborted'));
    };
    signal.addEventListener('abort', onAbort, { once: true });
    const connectTimer = setTimeout(() => {
      call.destroy(new UnreachableError(`no connection within ${CONNECT_TIMEOUT_MS / 1000} s`));
    }, CONNECT_TIMEOUT_MS);
    call.on('socket', (socket) => {
      socket.once(url.protocol === 'https:' ? 'secureConnect' : 'connect', () => {
        connected = true;
        clearTimeout(connectTimer);
      });
    });
    call.on('close', () => {
      clearTimeout(connectTimer);
      signal.removeEventListener('abort', onAbort);
    });
    call.on('error', (error) => {
      if (signal.aborted || connected || error instanceof UnreachableError) reject(error);
      else reject(new UnreachableError(error.message || error.name, { cause: error }));
    });
    call.on('response', resolve);
    call.end(body);
  });
}

/** Reads a body of at most 4 MiB as text. */
export async function readBody(response: http.IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of response as AsyncIterable<Buffer>) {
    size += part.length;
    if (size > MAX_BODY_BYTES) {
      response.destroy();
      throw new CliError(EXIT.failed, 'MESSAGE_TOO_LARGE', `the answer has more than ${MAX_BODY_BYTES} bytes`);
    }
    parts.push(part);
  }
  return Buffer.concat(parts).toString('utf8');
}

export interface JsonAnswer {
  status: number;
  body: unknown;
}

/** One request whose answer is JSON, within `timeoutMs`. */
export async function requestJson(request: HttpRequest & { timeoutMs: number }): Promise<JsonAnswer> {
  const signal = AbortSignal.any([request.signal, AbortSignal.timeout(request.timeoutMs)]);
  const response = await openRequest({ ...request, signal });
  const stop = (): void => {
    response.destroy();
  };
  signal.addEventListener('abort', stop, { once: true });
  try {
    const text = await readBody(response);
    return { status: response.statusCode ?? 0, body: text === '' ? null : (JSON.parse(text) as unknown) };
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
