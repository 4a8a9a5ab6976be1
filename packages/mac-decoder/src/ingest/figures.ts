/** Counts and moments of one transfer, on this process's monotonic clock in milliseconds. */
export class TransferFigures {
  payloadBytes = 0;
  shards = 0;
  beginAt: number | null = null;
  /** Producer's own account, from its Seal; since it sent Begin. */
  prefill: { startMs: number; endMs: number; queueMs: number; reusedTokens: number } | null = null;

  /** The last chunk that came whole: its end, and when. */
  lastChunk: { end: number; at: number } | null = null;

  private readonly installs: { at: number; payloadBytes: number }[] = [];
  private burst = { bytes: 0, milliseconds: 0, lastAt: 0, chunk: -1 };
  private lastChunkAt = Infinity;

  /** A verified shard. Within a chunk shards follow each other as fast as the way allows, which is the link's rate. */
  addShard(at: number, chunkIndex: number, payloadBytes: number): void {
    this.shards += 1;
    this.payloadBytes += payloadBytes;
    const { burst } = this;
    if (burst.chunk === chunkIndex) {
      burst.bytes += payloadBytes;
      burst.milliseconds += at - burst.lastAt;
    } else {
      this.lastChunkAt = at;
    }
    burst.chunk = chunkIndex;
    burst.lastAt = at;
  }

  addInstall(at: number, payloadBytes: number): void {
    this.installs.push({ at, payloadBytes });
  }

  /** Bytes and time in which they came one right after the other; zeros when there was no such time. */
  get linkSample(): { bytes: number; milliseconds: number } {
    return { bytes: this.burst.bytes, milliseconds: this.burst.milliseconds };
  }

  /**
   * When the producer's prefill ended, on this process's clock; null before the Seal. Begin may have been seen late, but the
   * last chunk's rows can only come after the prefill has ended.
   */
  get prefillEndAt(): number | null {
    if (this.beginAt === null || this.prefill === null) return null;
    return Math.min(this.beginAt + this.prefill.endMs, this.lastChunkAt);
  }

  /** Share of the payload bytes, 0 to 1, that was installed before the producer's prefill ended. */
  get overlap(): number {
    const end = this.prefillEndAt;
    if (end === null || this.payloadBytes === 0) return 0;
    const early = this.installs.filter(({ at }) => at <= end).reduce((sum, { payloadBytes }) => sum + payloadBytes, 0);
    return early / this.payloadBytes;
  }
}
