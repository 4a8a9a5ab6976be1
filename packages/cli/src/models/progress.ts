import { formatBytes, formatDuration } from '../format.js';
import type { StatusOutput } from '../terminal.js';

/** The rate is that of the last seconds: an average since the start hides that a download has come to a halt. */
const WINDOW_MS = 5_000;
const REDRAW_MS = 200;

/** Bytes per second over the last seconds. Times are milliseconds of any clock that does not go back. */
export class RateMeter {
  readonly #samples: { at: number; bytes: number }[] = [];

  /** `bytes` is the count since the start. */
  add(at: number, bytes: number): void {
    this.#samples.push({ at, bytes });
    while (this.#samples.length > 2 && at - (this.#samples[1]?.at ?? at) >= WINDOW_MS) this.#samples.shift();
  }

  /** null while there is nothing to tell. */
  rate(): number | null {
    const first = this.#samples[0];
    const last = this.#samples.at(-1);
    if (first === undefined || last === undefined || last.at <= first.at) return null;
    return Math.max(0, ((last.bytes - first.bytes) * 1000) / (last.at - first.at));
  }
}

/** `muse-nano: 12.3 MB of 55.1 MB, 3.20 MB/s, 13.4 s left` */
export function progressLine(name: string, done: number, total: number, rate: number | null): string {
  const parts = [`${name}: ${formatBytes(done)} of ${formatBytes(total)}`];
  if (rate !== null && rate > 0) {
    parts.push(`${formatBytes(Math.round(rate))}/s`);
    if (total > done) parts.push(`${formatDuration(((total - done) / rate) * 1000)} left`);
  }
  return parts.join(', ');
}

/** Shows bytes on the status line, at most five times a second. */
export class ByteProgress {
  readonly #meter = new RateMeter();
  #done = 0;
  #shownAt = -Infinity;

  constructor(
    private readonly output: StatusOutput,
    private readonly name: string,
    private readonly total: number,
  ) {}

  add(delta: number): void {
    this.#done += delta;
    const now = performance.now();
    if (now - this.#shownAt < REDRAW_MS) return;
    this.#shownAt = now;
    this.#meter.add(now, this.#done);
    this.output.status(progressLine(this.name, this.#done, this.total, this.#meter.rate()));
  }
}
