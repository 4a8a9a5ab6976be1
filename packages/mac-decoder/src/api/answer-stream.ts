import type { CompletionSink } from '../requests/completion.js';
import type { RequestProgress } from '../requests/progress.js';
import type { SseWriter } from './sse-writer.js';

const KEEP_ALIVE_MS = 5_000;
const PROGRESS_INTERVAL_MS = 100;

export interface AnswerStreamOptions {
  readonly writer: SseWriter;
  /** Makes the event for a piece of the answer. */
  readonly contentChunk: (text: string) => object;
  readonly withProgress: boolean;
  /** Called when a write fails: the client is gone. */
  readonly onGone: () => void;
  readonly now?: () => number;
  /** Time between two comments before the first text. */
  readonly keepAliveMs?: number;
}

/**
 * Puts the pieces of an answer on the wire, one write at a time. What comes while a write waits for a slow client is
 * joined, so that memory stays within the length of the answer: text becomes one chunk, of progress only the last counts.
 */
export class AnswerStream implements CompletionSink {
  private pendingText = '';
  private pendingProgress: RequestProgress | null = null;
  private progressDueAt = 0;
  private progressTimer: NodeJS.Timeout | null = null;
  private keepAliveDue = false;
  private readonly keepAlive: NodeJS.Timeout;
  private writing = false;
  private written: Promise<void> = Promise.resolve();
  private readonly now: () => number;

  constructor(private readonly options: AnswerStreamOptions) {
    this.now = options.now ?? (() => performance.now());
    this.keepAlive = setInterval(() => {
      this.keepAliveDue = true;
      this.pump();
    }, options.keepAliveMs ?? KEEP_ALIVE_MS);
  }

  text(text: string): void {
    // Comments are for the wait before the first text.
    clearInterval(this.keepAlive);
    this.pendingText += text;
    this.pump();
  }

  progress(progress: RequestProgress): void {
    if (!this.options.withProgress) return;
    this.pendingProgress = progress;
    const waitMs = this.progressDueAt - this.now();
    if (waitMs <= 0) this.pump();
    else this.progressTimer ??= setTimeout(() => this.onProgressDue(), Math.ceil(waitMs));
  }

  /** Stops timers and writes what is left; resolves when all is written. Nothing may be given afterwards. */
  async finish(): Promise<void> {
    this.stop();
    this.pendingProgress = null;
    this.pump();
    await this.written;
  }

  /** Stops timers and drops what is left; resolves when no write runs. */
  async abandon(): Promise<void> {
    this.stop();
    this.pendingProgress = null;
    this.pendingText = '';
    await this.written;
  }

  private onProgressDue(): void {
    this.progressTimer = null;
    this.pump();
  }

  private stop(): void {
    clearInterval(this.keepAlive);
    this.clearProgressTimer();
    this.keepAliveDue = false;
  }

  private clearProgressTimer(): void {
    if (this.progressTimer !== null) clearTimeout(this.progressTimer);
    this.progressTimer = null;
  }

  private pump(): void {
    if (this.writing) return;
    this.writing = true;
    this.written = this.writeAll();
  }

  private async writeAll(): Promise<void> {
    try {
      for (let write = this.nextWrite(); write !== null; write = this.nextWrite()) await write;
    } catch {
      // The only way in which a write fails is that nobody reads any more.
      this.options.onGone();
    } finally {
      // In the same turn as the last look for something to write, so that nothing is left lying.
      this.writing = false;
    }
  }

  private nextWrite(): Promise<void> | null {
    const { writer, contentChunk } = this.options;
    if (this.pendingProgress !== null && this.now() >= this.progressDueAt) {
      const progress = this.pendingProgress;
      this.pendingProgress = null;
      this.progressDueAt = this.now() + PROGRESS_INTERVAL_MS;
      this.clearProgressTimer();
      return writer.event(progress, 'muser.progress');
    }
    if (this.pendingText !== '') {
      const text = this.pendingText;
      this.pendingText = '';
      return writer.event(contentChunk(text));
    }
    if (this.keepAliveDue) {
      this.keepAliveDue = false;
      return writer.comment('keep-alive');
    }
    return null;
  }
}
