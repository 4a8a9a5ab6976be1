import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export const SUMMARY = {
  prefill: 'remote',
  fallback: null,
  promptTokens: 8012,
  cachedTokens: 0,
  ttftMs: 1234.5,
  kvBytes: 12_300_000,
  shards: 34,
  overlap: 0.87,
  producer: { nodeId: 'nabc', name: 'bench', backend: 'llama' },
  timeline: { received: 0, tokenized: 4, accepted: 9, firstToken: 1234.5, done: 1300 },
};

export interface Answering {
  request: IncomingMessage;
  response: ServerResponse;
  body: Record<string, unknown>;
}

/** A server that speaks the decoder's interface, for what a real decoder does only on bad days. */
export class FakeDecoder {
  readonly requests: Record<string, unknown>[] = [];

  private constructor(
    private readonly server: Server,
    readonly url: string,
  ) {}

  static async start(answer: (answering: Answering) => void | Promise<void>): Promise<FakeDecoder> {
    const server = createServer((request, response) => {
      void readJson(request).then((body) => {
        decoder.requests.push(body);
        return answer({ request, response, body });
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const decoder = new FakeDecoder(server, `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    return decoder;
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, 'close');
  }
}

async function readJson(request: IncomingMessage): Promise<Record<string, unknown>> {
  let text = '';
  for await (const part of request.setEncoding('utf8')) text += String(part);
  return text === '' ? {} : (JSON.parse(text) as Record<string, unknown>);
}

export function openStream(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.flushHeaders();
}

export function data(value: unknown): string {
  return `data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`;
}

export function textChunk(text: string): string {
  return data({ choices: [{ index: 0, delta: { content: text }, finish_reason: null }] });
}

export function finish(summary: object = SUMMARY): string {
  return data({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], muser: summary }) + data('[DONE]');
}

export function progress(value: object): string {
  return `event: muser.progress\n${data(value)}`;
}
