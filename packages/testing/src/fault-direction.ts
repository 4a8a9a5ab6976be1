import { FaultyStream, type FaultEnd, type Faults } from './faults.js';

/** What is kept of a direction that is held; its sender waits beyond that. */
const MAX_HELD_BYTES = 16 * 1024 * 1024;

export interface DirectionPorts {
  /** Hands bytes to the receiver; resolves when it has taken them. */
  readonly write: (piece: Buffer) => Promise<void>;
  /** Ends the connection as a fault says; a stall needs nothing. */
  readonly end: (how: FaultEnd) => void;
  /** Something failed while bytes were passed that nobody waits for. */
  readonly fail: () => void;
}

/**
 * The bytes of one direction of a connection. It can be held at a byte: what comes after it waits until the direction is let
 * go, with other faults when they are given. So whatever is to happen to a transfer happens exactly there.
 */
export class Direction {
  readonly #ports: DirectionPorts;
  #faults: Faults = {};
  #stream = new FaultyStream({});
  #line: DelayLine | null = null;
  #passed = 0;
  #waiting: Buffer = Buffer.alloc(0);
  #hold: { at: number; reached: () => void; released: Promise<void>; release: () => void } | null = null;
  #work: Promise<void> = Promise.resolve();
  #ended = false;

  constructor(ports: DirectionPorts) {
    this.#ports = ports;
  }

  /** Bytes of the sender that the receiver has been given, or that a fault has swallowed. */
  get passed(): number {
    return this.#passed;
  }

  /** Bytes that have come and are held. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** A fault has ended it: nothing passes any more. */
  get hasEnded(): boolean {
    return this.#ended;
  }

  /** Something is done to its bytes, or it has ended. */
  get isFaulty(): boolean {
    return this.#ended || Object.keys(this.#faults).length > 0;
  }

  /** From here on these faults, and no others. Offsets count from the connection's first byte. */
  become(faults: Faults): void {
    this.#faults = faults;
    this.#stream = new FaultyStream(faults, this.#passed);
    this.#line = faults.delayMs === undefined ? null : new DelayLine(faults.delayMs, this.#ports.write);
  }

  /** Holds it at a byte, now when that has passed already. Resolves when every byte before it has passed. */
  async holdAt(byte: number): Promise<void> {
    const before = this.#hold;
    let release = before?.release ?? ((): void => undefined);
    const released = before?.released ?? new Promise<void>((resolve) => (release = resolve));
    await new Promise<void>((reached) => {
      this.#hold = { at: Math.max(byte, this.#passed), reached, released, release };
      void this.#drain();
    });
  }

  /** Lets it go on, with these faults from here on when they are given. */
  release(faults: Faults | null = null): void {
    const hold = this.#hold;
    this.#hold = null;
    if (faults !== null) {
      this.become(faults);
      this.#endNow(this.#stream.next(Buffer.alloc(0)).end);
    }
    hold?.release();
    void this.#drain();
  }

  /** Takes what the sender sent. Resolves when more may be read. */
  async take(received: Buffer): Promise<void> {
    this.#waiting = this.#waiting.length === 0 ? received : Buffer.concat([this.#waiting, received]);
    if (this.#hold === null || this.#passed < this.#hold.at) await this.#drain();
    if (this.#waiting.length > MAX_HELD_BYTES) await this.#hold?.released;
  }

  /** Resolves when all that was taken has passed. */
  async drained(): Promise<void> {
    await this.#hold?.released;
    await this.#drain();
    await this.#line?.drained();
  }

  #drain(): Promise<void> {
    const work = this.#work.then(() => this.#passAll());
    this.#work = work.catch(() => this.#ports.fail());
    return work.catch(() => undefined);
  }

  async #passAll(): Promise<void> {
    while (!this.#ended && this.#waiting.length > 0) {
      const room = this.#hold === null ? Infinity : this.#hold.at - this.#passed;
      if (room <= 0) break;
      const chunk = this.#waiting.subarray(0, Math.min(room, this.#waiting.length));
      this.#waiting = this.#waiting.subarray(chunk.length);
      await this.#pass(chunk);
    }
    if (this.#hold !== null && this.#passed >= this.#hold.at) this.#hold.reached();
  }

  async #pass(chunk: Buffer): Promise<void> {
    const { bytes, end } = this.#stream.next(chunk);
    const { bytesPerSecond } = this.#faults;
    for (const piece of paced(bytes, bytesPerSecond)) {
      if (this.#line === null) await this.#ports.write(piece);
      else await this.#line.push(piece);
      if (bytesPerSecond !== undefined) await sleep((1_000 * piece.length) / bytesPerSecond);
    }
    this.#passed += chunk.length;
    if (end !== null) await this.#line?.drained();
    this.#endNow(end);
  }

  #endNow(end: FaultEnd | null): void {
    if (end === null || this.#ended) return;
    this.#ended = true;
    this.#waiting = Buffer.alloc(0);
    this.#ports.end(end);
  }
}

/** Pieces of 20 ms each, so that a slow link looks slow and not bursty. */
function* paced(chunk: Buffer, bytesPerSecond: number | undefined): Generator<Buffer> {
  const size = bytesPerSecond === undefined ? Math.max(1, chunk.length) : Math.max(1, Math.floor(bytesPerSecond / 50));
  for (let start = 0; start < chunk.length; start += size) yield chunk.subarray(start, start + size);
}

/** Hands on what was pushed after a fixed time, in order. */
class DelayLine {
  static readonly MAX_BYTES = 64 * 1024 * 1024;
  readonly #delayMs: number;
  readonly #deliver: (chunk: Buffer) => Promise<void>;
  #last: Promise<void> = Promise.resolve();
  #bytes = 0;

  constructor(delayMs: number, deliver: (chunk: Buffer) => Promise<void>) {
    this.#delayMs = delayMs;
    this.#deliver = deliver;
  }

  async push(chunk: Buffer): Promise<void> {
    const due = Date.now() + this.#delayMs;
    this.#bytes += chunk.length;
    const before = this.#last;
    this.#last = (async () => {
      await before;
      await sleep(due - Date.now());
      await this.#deliver(chunk);
      this.#bytes -= chunk.length;
    })();
    // A failed write is reported by the next push or by drained().
    this.#last.catch(() => undefined);
    if (this.#bytes > DelayLine.MAX_BYTES) await this.#last;
  }

  drained(): Promise<void> {
    return this.#last;
  }
}

/** A timer takes a millisecond at least, which for every piece that is late already would limit the rate. */
function sleep(milliseconds: number): Promise<void> {
  if (milliseconds <= 0) return Promise.resolve();
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
