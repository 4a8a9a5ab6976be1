const SAMPLE_MS = 100;

/** Processor time and resident memory of this process between `start` and `stop`. */
export class Usage {
  #cpu = process.cpuUsage();
  #rssBytes = 0;
  #peakRssBytes = 0;
  #timer: NodeJS.Timeout | undefined;

  start(): void {
    this.#cpu = process.cpuUsage();
    this.#rssBytes = process.memoryUsage.rss();
    this.#peakRssBytes = this.#rssBytes;
    this.#timer = setInterval(() => this.#sample(), SAMPLE_MS);
  }

  /** Processor seconds of all threads; bytes resident at the start, and the most that a sample saw. */
  stop(): { cpuSeconds: number; rssBytes: number; peakRssBytes: number } {
    clearInterval(this.#timer);
    this.#sample();
    const { user, system } = process.cpuUsage(this.#cpu);
    return { cpuSeconds: (user + system) / 1e6, rssBytes: this.#rssBytes, peakRssBytes: this.#peakRssBytes };
  }

  #sample(): void {
    this.#peakRssBytes = Math.max(this.#peakRssBytes, process.memoryUsage.rss());
  }
}
