/** A range of the bytes of one direction. */
export interface ByteRange {
  at: number;
  count: number;
}

/** What happens to the bytes of one direction of one connection. Offsets count the bytes that its sender sent, from 0. */
export interface Faults {
  /** The lowest bit of this byte is flipped. */
  corruptByte?: number;
  /** These bytes never arrive; those after them do. */
  drop?: ByteRange;
  /** When these bytes have arrived they come once more, as from somebody who recorded them. */
  replay?: ByteRange;
  /** Exactly this many bytes arrive, then the connection ends, in both directions. */
  cutAtByte?: number;
  /**
   * At most this many bytes arrive, then both ends get a TCP reset. It may overtake what was not read, and Node reports one
   * that comes together with data as a regular end.
   */
  resetAtByte?: number;
  /** Exactly this many bytes pass, then nothing more in this direction, while the connection stays open. */
  stallAtByte?: number;
  /**
   * Exactly this many bytes arrive, then the receiver sees the connection end, while the sender never hears of it: its
   * connection stays open and takes nothing more, as when the other machine lost its power.
   */
  halfOpenAtByte?: number;
  bytesPerSecond?: number;
  /** Each byte arrives so much later; the rate stays as it is. */
  delayMs?: number;
}

/** How a direction ends by its faults. */
export type FaultEnd = 'cut' | 'reset' | 'stall' | 'half-open';

/** Does to a stream of bytes what its faults say, chunk by chunk; timing is left to the proxy. */
export class FaultyStream {
  readonly #faults: Faults;
  readonly #end: { at: number; how: FaultEnd } | null;
  readonly #recorded: Buffer[] = [];
  #offset: number;

  /** @param offset bytes that passed before these faults */
  constructor(faults: Faults, offset = 0) {
    this.#offset = offset;
    this.#faults = faults;
    this.#end = endOf(faults);
  }

  /** What passes of these bytes, and how the direction ends after them; null when it goes on. */
  next(received: Buffer): { bytes: Buffer; end: FaultEnd | null } {
    const stop = this.#end;
    const room = stop === null ? Infinity : stop.at - this.#offset;
    const chunk = room < received.length ? received.subarray(0, Math.max(0, room)) : received;
    const bytes = this.#edit(Buffer.from(chunk));
    this.#offset += chunk.length;
    return { bytes, end: stop !== null && this.#offset >= stop.at ? stop.how : null };
  }

  #edit(chunk: Buffer): Buffer {
    const { corruptByte = -1, drop, replay } = this.#faults;
    const flipped = chunk[corruptByte - this.#offset];
    if (flipped !== undefined) chunk[corruptByte - this.#offset] = flipped ^ 1;
    if (drop !== undefined) {
      const [from, to] = this.#part(chunk, drop);
      return Buffer.concat([chunk.subarray(0, from), chunk.subarray(to)]);
    }
    if (replay === undefined) return chunk;
    const [from, to] = this.#part(chunk, replay);
    this.#recorded.push(chunk.subarray(from, to));
    const isLast = from < to && this.#offset + to === replay.at + replay.count;
    return isLast ? Buffer.concat([chunk.subarray(0, to), ...this.#recorded, chunk.subarray(to)]) : chunk;
  }

  /** Where the range begins and ends within a chunk. */
  #part(chunk: Buffer, { at, count }: ByteRange): [from: number, to: number] {
    const within = (offset: number): number => Math.max(0, Math.min(chunk.length, offset - this.#offset));
    return [within(at), within(at + count)];
  }
}

/** The end that comes first; of several at the same byte, the first in this order. */
function endOf({ cutAtByte, resetAtByte, stallAtByte, halfOpenAtByte }: Faults): { at: number; how: FaultEnd } | null {
  const ends: { at: number | undefined; how: FaultEnd }[] = [
    { at: cutAtByte, how: 'cut' },
    { at: resetAtByte, how: 'reset' },
    { at: halfOpenAtByte, how: 'half-open' },
    { at: stallAtByte, how: 'stall' },
  ];
  let first: { at: number; how: FaultEnd } | null = null;
  for (const { at, how } of ends) if (at !== undefined && (first === null || at < first.at)) first = { at, how };
  return first;
}
