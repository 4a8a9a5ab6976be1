import type { Socket } from 'node:net';

import { MuserError, toMuserError } from '@muser/protocol';

import { encodeFrame, FrameDecoder } from './frames.js';
import type { Link, NodeFrames, WorkerFrame } from './schema.js';

/** A worker that does not read is broken; what waits for it may not grow without end. */
const MAX_UNSENT_BYTES = 64 << 20;

/** One socket of the bridge, as frames. */
export class FrameConnection {
  /** Resolves (never rejects) when the connection is closed: with what was wrong, null when the peer just closed it. */
  readonly closed: Promise<MuserError | null>;
  readonly #socket: Socket;
  readonly #decoder: FrameDecoder;
  #onFrame: (frame: WorkerFrame) => void;
  #error: MuserError | null = null;

  /** @param onFrame hears every frame in order; what it throws closes the connection */
  constructor(socket: Socket, link: Link, onFrame: (frame: WorkerFrame) => void) {
    this.#socket = socket;
    this.#decoder = new FrameDecoder(link, 'worker');
    this.#onFrame = onFrame;
    this.closed = new Promise((resolve) => {
      socket.once('close', () => resolve(this.#error ?? this.#cutOff()));
    });
    // Reset or closed: the peer is gone either way, and why is not to be learnt here.
    socket.on('error', () => undefined);
    socket.on('data', (block) => this.#receive(block));
  }

  /** From now on frames go there. */
  handTo(onFrame: (frame: WorkerFrame) => void): void {
    this.#onFrame = onFrame;
  }

  /** Sends, or does nothing when the connection is closed: its end is told by `closed`. */
  send<K extends keyof NodeFrames>(kind: K, header: NodeFrames[K], payload?: Uint8Array): void {
    if (this.#socket.destroyed) return;
    this.#socket.write(encodeFrame(kind, header, payload));
    if (this.#socket.writableLength > MAX_UNSENT_BYTES) {
      this.close(new MuserError('STALLED', `the worker left ${this.#socket.writableLength} bytes unread`));
    }
  }

  /** We had no reason to close it: the peer has ended the stream, maybe within a frame. */
  get endedByPeer(): boolean {
    return this.#error === null && this.#socket.destroyed;
  }

  /** @param error why, when something is wrong */
  close(error: MuserError | null = null): void {
    this.#error ??= error;
    this.#socket.destroy();
  }

  #receive(block: Buffer): void {
    try {
      for (const frame of this.#decoder.push(block)) {
        // The decoder lets only the worker's frames through.
        this.#onFrame(frame as WorkerFrame);
        if (this.#socket.destroyed) return;
      }
    } catch (error) {
      this.close(toMuserError(error, 'INTERNAL'));
    }
  }

  #cutOff(): MuserError | null {
    return this.#decoder.empty ? null : new MuserError('MESSAGE_INVALID', 'the connection ended within a frame');
  }
}
