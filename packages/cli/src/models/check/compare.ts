import type { LayerKind } from '@muser/protocol';
import type { TokenList } from './hf-traits.js';
import type { ModelTraits } from './traits.js';

/** One thing that both models must have alike. `null` on a side: its metadata do not say. */
export interface Comparison {
  what: string;
  gguf: string | null;
  huggingface: string | null;
  /** null when one side does not say. */
  same: boolean | null;
}

/** Where the vocabularies part: the first id whose tokens differ. */
export interface TokenDifference {
  id: number;
  gguf: string;
  huggingface: string;
}

/** Compares tokens one by one as they are read from the GGUF file, so that they are never all in memory. */
export class TokenComparison {
  first: TokenDifference | null = null;
  different = 0;
  /** Tokens of the GGUF file above the last of the other side: fillers up to a round number. */
  extra = 0;
  #compared = 0;

  constructor(private readonly tokens: TokenList) {}

  add(id: number, bytes: Buffer): void {
    if (id >= this.tokens.length) {
      this.extra += 1;
      return;
    }
    this.#compared += 1;
    const expected = this.tokens[id] ?? null;
    if (expected === null || bytes.equals(Buffer.from(expected))) return;
    this.different += 1;
    this.first ??= { id, gguf: bytes.toString('utf8').slice(0, 64), huggingface: expected.slice(0, 64) };
  }

  /** Tokens of the Hugging Face tokenizer that the GGUF file does not have. */
  get missing(): number {
    return this.tokens.length - this.#compared;
  }

  get same(): boolean {
    return this.different === 0 && this.missing === 0;
  }
}

/** What must agree between a decoder's GGUF file and a producer's Hugging Face folder. */
export function comparePair(gguf: ModelTraits, huggingface: ModelTraits, tokens: TokenComparison | null): Comparison[] {
  const a = gguf.shape;
  const b = huggingface.shape;
  const rows: [string, unknown, unknown][] = [
    ['layers', a?.layerCount, b?.layerCount],
    ['kinds of layers', kinds(a?.layers), kinds(b?.layers)],
    ['KV heads', a?.kvHeads, b?.kvHeads],
    ['head dimension', a?.headDimension, b?.headDimension],
    ['window', a?.windowTokens, b?.windowTokens],
    // GGUF keeps the base in 32 bits.
    ['RoPE base', single(a?.ropeBase), single(b?.ropeBase)],
    ['layers with RoPE', a?.ropeLayers, b?.ropeLayers],
    ['vocabulary', a?.vocabularySize, b?.vocabularySize],
  ];
  const compared = rows.map(([what, left, right]): Comparison => {
    const known = left != null && right != null;
    return { what, gguf: shown(left), huggingface: shown(right), same: known ? left === right : null };
  });
  return [...compared, tokenRow(gguf, huggingface, tokens)];
}

function tokenRow(gguf: ModelTraits, huggingface: ModelTraits, tokens: TokenComparison | null): Comparison {
  const what = 'order of tokens';
  if (tokens === null || gguf.tokenCount === null) return { what, gguf: null, huggingface: null, same: null };
  const sides = { gguf: `${gguf.tokenCount} tokens`, huggingface: `${huggingface.tokenCount ?? 0} tokens` };
  return { what, ...sides, same: tokens.same };
}

/** `3 window, 1 global, 3 window, 1 global` */
function kinds(layers: readonly LayerKind[] | null | undefined): string | null {
  if (layers == null) return null;
  const runs: { kind: LayerKind; count: number }[] = [];
  for (const kind of layers) {
    const last = runs.at(-1);
    if (last?.kind === kind) last.count += 1;
    else runs.push({ kind, count: 1 });
  }
  return runs.map(({ kind, count }) => `${count} ${kind}`).join(', ');
}

function single(value: number | null | undefined): number | null {
  return value == null ? null : Math.fround(value);
}

function shown(value: unknown): string | null {
  return typeof value === 'number' || typeof value === 'string' ? String(value) : null;
}
