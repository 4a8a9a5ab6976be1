import type { KvStage, Sequence } from '@muser/metal';
import { fromEngineError, type MuserError } from '@muser/protocol';

/** A complete, verified chunk. */
export interface ReceivedChunk {
  readonly stage: KvStage;
  readonly end: number;
  /** Bytes that came over the wire for it. */
  readonly payloadBytes: number;
  /** Whether the sequence can be decoded from `end` on once this chunk is installed. */
  readonly resumePoint: boolean;
}

export interface InstallQueueOptions {
  readonly sequence: Pick<Sequence, 'install'>;
  /** Most bytes of stages that may exist at once, the one that is being filled included. */
  readonly limitBytes: number;
  readonly onInstalled: (chunk: ReceivedChunk) => void;
  /** Called at most once; nothing is installed afterwards. */
  readonly onFailed: (error: MuserError) => void;
}

/** Installs chunks one after another, in the order in which they were completed, while more are being received. */
export class InstallQueue {
  private tail: Promise<void> = Promise.resolve();
  private waitingBytes = 0;
  private failed: MuserError | null = null;

  constructor(private readonly options: InstallQueueOptions) {}

  /** What made an install fail. */
  get failure(): MuserError | null {
    return this.failed;
  }

  /** Waits until a stage of `bytes` fits beside those that wait to be installed. */
  async room(bytes: number): Promise<void> {
    // Installs end within one step of the engine each, and the queue empties even when they fail.
    while (this.waitingBytes > 0 && this.waitingBytes + bytes > this.options.limitBytes) await this.tail;
  }

  /** Takes over the chunk's stage. */
  push(chunk: ReceivedChunk): void {
    const bytes = chunk.stage.sizeBytes;
    this.waitingBytes += bytes;
    this.tail = this.tail
      .then(() => this.install(chunk))
      .finally(() => {
        this.waitingBytes -= bytes;
        chunk.stage.dispose();
      });
  }

  /** Resolves when all that was pushed is installed or given up; throws what made an install fail. */
  async finished(): Promise<void> {
    await this.settled();
    if (this.failed !== null) throw this.failed;
  }

  /** The same without the throw. */
  async settled(): Promise<void> {
    await this.tail;
  }

  private async install(chunk: ReceivedChunk): Promise<void> {
    if (this.failed !== null) return;
    try {
      await this.options.sequence.install(chunk.stage);
    } catch (error) {
      this.failed = fromEngineError(error);
      this.options.onFailed(this.failed);
      return;
    }
    this.options.onInstalled(chunk);
  }
}
