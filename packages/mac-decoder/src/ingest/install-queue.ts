import type { KvStage, Sequence } from '@muser/metal';
import { fromEngineError, type MuserError } from '@muser/protocol';
import type { ByteBudget } from '@muser/transport';

/** A complete, verified chunk. */
export interface ReceivedChunk {
  readonly stage: KvStage;
  readonly end: number;
  /** Bytes that came over the wire for it. */
  readonly payloadBytes: number;
  /** What it takes of the budget of staged bytes until it is installed or given up. */
  readonly stagedBytes: number;
  /** Whether the sequence can be decoded from `end` on once this chunk is installed. */
  readonly resumePoint: boolean;
}

export interface InstallQueueOptions {
  readonly sequence: Pick<Sequence, 'install'>;
  /** Gets a chunk's bytes back once its stage is gone. */
  readonly staged: Pick<ByteBudget, 'release'>;
  readonly onInstalled: (chunk: ReceivedChunk) => void;
  /** Called at most once; nothing is installed afterwards. */
  readonly onFailed: (error: MuserError) => void;
}

/** Installs chunks one after another, in the order in which they were completed, while more are being received. */
export class InstallQueue {
  private tail: Promise<void> = Promise.resolve();
  private failed: MuserError | null = null;

  constructor(private readonly options: InstallQueueOptions) {}

  /** What made an install fail. */
  get failure(): MuserError | null {
    return this.failed;
  }

  /** Takes over the chunk's stage and its bytes. Installs end within one step of the engine each, also when they fail. */
  push(chunk: ReceivedChunk): void {
    this.tail = this.tail
      .then(() => this.install(chunk))
      .finally(() => {
        chunk.stage.dispose();
        this.options.staged.release(chunk.stagedBytes);
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
