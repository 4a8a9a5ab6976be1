import { WaitingLine } from '../engine/waiting-line.js';
import type { PromptTokenizer } from './prompt.js';

/** Each takes a thread of its own; more would only slow the engine down. */
const AT_ONCE = 2;

export interface TokenizerQueueOptions {
  /** How many prompts may wait. */
  readonly limit: number;
  readonly deadlineMs: number;
}

/** Tokenizes two prompts at a time, first come, first served; a request that ends while it waits costs nothing. */
export class TokenizerQueue {
  private free = AT_ONCE;
  private readonly line: WaitingLine<true>;

  constructor(
    private readonly model: PromptTokenizer,
    { limit, deadlineMs }: TokenizerQueueOptions,
  ) {
    this.line = new WaitingLine({ tryEnter: () => this.tryEnter(), limit, deadlineMs });
  }

  /**
   * The model as the request with this signal sees it. Its `tokenizePieces` rejects with QUEUE_FULL, DEADLINE_EXCEEDED,
   * CANCELLED or UNAVAILABLE while it waits, then with what the model's rejects with.
   */
  of(signal: AbortSignal): PromptTokenizer {
    return { info: this.model.info, tokenizePieces: (pieces) => this.tokenizePieces(pieces, signal) };
  }

  /** Turns everybody away who waits, now and later. */
  close(): void {
    this.line.close();
  }

  private async tokenizePieces(
    pieces: Parameters<PromptTokenizer['tokenizePieces']>[0],
    signal: AbortSignal,
  ): Promise<Int32Array[]> {
    await this.line.enter(1, signal);
    try {
      return await this.model.tokenizePieces(pieces);
    } finally {
      this.free += 1;
      this.line.advance();
    }
  }

  private tryEnter(): true | null {
    if (this.free === 0) return null;
    this.free -= 1;
    return true;
  }
}
