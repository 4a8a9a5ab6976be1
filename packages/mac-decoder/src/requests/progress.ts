import type { MuserError } from '@muser/protocol';

/** What a request is doing, for people who wait. */
export interface RequestProgress {
  readonly phase: 'queued' | 'prefill' | 'transfer' | 'decode';
  readonly where: 'local' | 'remote';
  /** Done and to be done in this phase. While queued: requests before this one, and 0. */
  readonly tokens: number;
  readonly total: number;
  /** Of this phase so far; 0 while unknown. */
  readonly tokensPerSecond: number;
  /** KV bytes received and verified. */
  readonly bytes: number;
  readonly fallback: { readonly code: string; readonly message: string } | null;
}

type PhaseKey = `${RequestProgress['where']} ${RequestProgress['phase']}`;

/** Adds rate, bytes and fallback to the counts of a request's phases and hands them on. */
export class ProgressMeter {
  /** Where each phase began. Prefill and transfer take turns while both run, and neither begins anew. */
  private readonly starts = new Map<PhaseKey, { at: number; tokens: number }>();
  private bytes = 0;
  private fallback: RequestProgress['fallback'] = null;

  constructor(
    private readonly now: () => number,
    private readonly emit: (progress: RequestProgress) => void,
  ) {}

  setBytes(bytes: number): void {
    this.bytes = bytes;
  }

  setFallback(error: MuserError): void {
    this.fallback = { code: error.code, message: error.message };
  }

  report(where: RequestProgress['where'], phase: RequestProgress['phase'], tokens: number, total: number): void {
    const at = this.now();
    const key: PhaseKey = `${where} ${phase}`;
    const start = this.starts.get(key) ?? { at, tokens };
    this.starts.set(key, start);
    const elapsed = at - start.at;
    const tokensPerSecond = elapsed > 0 ? Math.round(((tokens - start.tokens) / elapsed) * 1_000) : 0;
    this.emit({ phase, where, tokens, total, tokensPerSecond, bytes: this.bytes, fallback: this.fallback });
  }
}
