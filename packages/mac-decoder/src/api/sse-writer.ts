import type { ServerResponse } from 'node:http';
import { MuserError } from '@muser/protocol';

/** A client that takes nothing for this long is gone. */
const STALLED_READER_MS = 30_000;

const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  connection: 'keep-alive',
  'x-accel-buffering': 'no',
};

/** Server-sent events on one response. Every write waits until the client's side has taken it. */
export class SseWriter {
  constructor(
    private readonly response: ServerResponse,
    private readonly stalledReaderMs = STALLED_READER_MS,
  ) {}

  open(): void {
    this.response.writeHead(200, HEADERS);
    this.response.flushHeaders();
  }

  event(data: object | string, name?: string): Promise<void> {
    const text = typeof data === 'string' ? data : JSON.stringify(data);
    return this.write(`${name === undefined ? '' : `event: ${name}\n`}data: ${text}\n\n`);
  }

  comment(text: string): Promise<void> {
    return this.write(`: ${text}\n\n`);
  }

  end(): void {
    if (!this.response.destroyed) this.response.end();
  }

  /** @throws MuserError CANCELLED when the client is gone or has stopped reading. */
  private async write(block: string): Promise<void> {
    if (this.response.destroyed || this.response.writableEnded) throw goneError();
    if (this.response.write(block)) return;
    await this.drained();
  }

  private drained(): Promise<void> {
    const { response } = this;
    return new Promise((resolve, reject) => {
      const settle = (error: MuserError | null): void => {
        clearTimeout(timer);
        response.off('drain', onDrain);
        response.off('close', onClose);
        if (error === null) resolve();
        else reject(error);
      };
      const onDrain = (): void => settle(null);
      const onClose = (): void => settle(goneError());
      const timer = setTimeout(() => {
        settle(new MuserError('CANCELLED', `The client took nothing for ${this.stalledReaderMs} ms.`));
        response.destroy();
      }, this.stalledReaderMs);
      response.on('drain', onDrain);
      response.on('close', onClose);
    });
  }
}

function goneError(): MuserError {
  return new MuserError('CANCELLED', 'The client closed the connection.');
}
