import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';

interface HeldMessage {
  bytes: number;
  pass: () => void;
}

/**
 * Stands between grpc-js and its readable stream, which would buffer 16 messages of any size: a message passes only while
 * fewer than `limitBytes` wait for the reader. As long as one is held here grpc-js reads no further, the HTTP/2 window closes,
 * and the sender waits.
 */
export class ReceiveGate {
  readonly #limitBytes: number;
  #waitingBytes = 0;
  #held: HeldMessage | null = null;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /** Passed to the stream and not yet taken by the reader. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  readonly interceptor: Interceptor = (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, _listener, next) => {
        next(metadata, {
          onReceiveMessage: (message: Buffer, passOn: (message: Buffer) => void) => {
            this.#held = { bytes: message.length, pass: () => passOn(message) };
            this.#passHeld();
          },
        });
      },
    });

  /** The reader has taken a message of this size. */
  taken(bytes: number): void {
    this.#waitingBytes -= bytes;
    this.#passHeld();
  }

  #passHeld(): void {
    const held = this.#held;
    if (held === null) return;
    if (this.#waitingBytes > 0 && this.#waitingBytes + held.bytes > this.#limitBytes) return;
    this.#held = null;
    this.#waitingBytes += held.bytes;
    held.pass();
  }
}
