import { once } from 'node:events';
import http from 'node:http';
import https from 'node:https';
import type { AddressInfo } from 'node:net';

export interface FileRequest {
  path: string;
  range: string | null;
  authorization: string | null;
  /** How often this path was asked for before. */
  before: number;
}

/** Answers one request; false leaves it to the server's good behaviour. */
export type Misbehaviour = (
  request: FileRequest,
  response: http.ServerResponse,
  bytes: Buffer,
) => boolean | Promise<boolean>;

/** A server of files that supports ranges, and does wrong what a test asks for. */
export class FileServer {
  readonly requests: FileRequest[] = [];
  misbehave: Misbehaviour = () => false;

  private constructor(
    private readonly server: http.Server,
    readonly url: string,
    private readonly files: Map<string, Buffer>,
  ) {}

  static async start(files: Record<string, Buffer>, tls?: { key: string; cert: string }): Promise<FileServer> {
    const listener = (request: http.IncomingMessage, response: http.ServerResponse): void => {
      void self.#answer(request, response);
    };
    const server = tls === undefined ? http.createServer(listener) : https.createServer(tls, listener);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const url = tls === undefined ? `http://127.0.0.1:${port}` : `https://localhost:${port}`;
    const self = new FileServer(server, url, new Map(Object.entries(files)));
    return self;
  }

  set(path: string, bytes: Buffer): void {
    this.files.set(path, bytes);
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, 'close');
  }

  async #answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const path = decodeURIComponent((request.url ?? '').slice(1));
    const seen: FileRequest = {
      path,
      range: request.headers.range ?? null,
      authorization: request.headers.authorization ?? null,
      before: this.requests.filter((earlier) => earlier.path === path).length,
    };
    this.requests.push(seen);
    const bytes = this.files.get(path);
    if (await this.misbehave(seen, response, bytes ?? Buffer.alloc(0))) return;
    if (bytes === undefined) {
      response.writeHead(404).end();
      return;
    }
    sendRange(seen, response, bytes);
  }
}

export function sendRange(request: FileRequest, response: http.ServerResponse, bytes: Buffer): void {
  const start = startOf(request);
  if (start > 0 && start >= bytes.length) {
    response.writeHead(416, { 'content-range': `bytes */${bytes.length}` }).end();
    return;
  }
  writeHead(request, response, bytes);
  response.end(bytes.subarray(start));
}

/** Sends `count` bytes of what was asked for, then breaks the connection. */
export function breakAfter(request: FileRequest, response: http.ServerResponse, bytes: Buffer, count: number): void {
  const start = startOf(request);
  writeHead(request, response, bytes);
  response.write(bytes.subarray(start, start + count), () => response.destroy());
}

export function writeHead(request: FileRequest, response: http.ServerResponse, bytes: Buffer): void {
  const start = startOf(request);
  const headers = { 'content-length': bytes.length - start, 'accept-ranges': 'bytes' };
  if (request.range === null) response.writeHead(200, headers);
  else response.writeHead(206, { ...headers, 'content-range': `bytes ${start}-${bytes.length - 1}/${bytes.length}` });
}

function startOf(request: FileRequest): number {
  return Number(/^bytes=(\d+)-$/.exec(request.range ?? '')?.[1] ?? 0);
}
