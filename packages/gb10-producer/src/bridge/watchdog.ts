/** A step may take longer than a heartbeat: it may have to compile. */
const STEP_FACTOR = 3;
/** When this process was itself held up, what the worker sent meanwhile is still to be read. */
const SECOND_LOOK_MS = 1_000;

/** Tells once when a worker gives no sign of life, or has work and makes no step. */
export class Watchdog {
  readonly #limitMs: number;
  readonly #onHang: (symptom: string) => void;
  #timer: NodeJS.Timeout | null = null;
  #lastSignMs = 0;
  #lastStepMs = 0;
  #steps = -1;

  constructor(limitMs: number, onHang: (symptom: string) => void) {
    this.#limitMs = limitMs;
    this.#onHang = onHang;
  }

  start(): void {
    this.#lastSignMs = performance.now();
    this.#lastStepMs = this.#lastSignMs;
    this.#look(this.#limitMs / 4);
  }

  stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  alive(): void {
    this.#lastSignMs = performance.now();
  }

  /** @param steps made so far */
  steps(steps: number, runningRequests: number): void {
    if (steps !== this.#steps || runningRequests === 0) this.#lastStepMs = performance.now();
    this.#steps = steps;
  }

  #look(inMs: number, suspicion = false): void {
    this.#timer = setTimeout(() => {
      const symptom = this.#symptom();
      if (symptom === null) return this.#look(this.#limitMs / 4);
      if (!suspicion) return this.#look(Math.min(SECOND_LOOK_MS, this.#limitMs), true);
      this.#timer = null;
      this.#onHang(symptom);
    }, inMs);
  }

  #symptom(): string | null {
    const nowMs = performance.now();
    if (nowMs - this.#lastSignMs > this.#limitMs) return `no heartbeat for ${this.#limitMs} ms`;
    const stepLimitMs = STEP_FACTOR * this.#limitMs;
    return nowMs - this.#lastStepMs > stepLimitMs ? `requests but no step for ${stepLimitMs} ms` : null;
  }
}
