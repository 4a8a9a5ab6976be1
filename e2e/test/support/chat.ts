const LIMIT_MS = 300_000;
const MAX_TOKENS = 64;

export interface Answer {
  text: string;
  /** What the decoder says of the way that the request went. */
  muser: {
    prefill: string;
    fallback: { code: string; message: string } | null;
    attempts: { code: string | null }[];
    promptTokens: number;
    cachedTokens: number;
    ttftMs: number;
    kvBytes: number;
    shards: number;
    overlap: number;
    placement: { reason: string; predictedMs: { local: number | null; remote: number | null } };
    /** Milliseconds since the request was received. */
    timeline: Record<string, number>;
  };
  /** It had to wait for its turn at the producer. */
  queued: boolean;
}

export interface Progress {
  phase: string;
  where?: string;
  /** KV bytes received and verified so far. */
  bytes?: number;
}

/** Asks a decoder over HTTP, greedily, as `muser ask` does, which takes longer to start than a short prefill. */
export async function chat(
  decoder: string,
  message: string,
  prefill: 'local' | 'remote' | 'auto',
  {
    signal,
    onProgress,
    limitMs = LIMIT_MS,
  }: { signal?: AbortSignal; onProgress?: (progress: Progress) => void; limitMs?: number } = {},
): Promise<Answer> {
  const limit = AbortSignal.timeout(limitMs);
  const response = await fetch(new URL('/v1/chat/completions', decoder), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'default',
      messages: [{ role: 'user', content: message }],
      stream: true,
      temperature: 0,
      max_tokens: MAX_TOKENS,
      muser: { prefill, progress: true },
    }),
    signal: signal === undefined ? limit : AbortSignal.any([signal, limit]),
  });
  if (response.status !== 200 || response.body === null) throw new Error(await response.text());
  const answer: Answer = { text: '', muser: {} as Answer['muser'], queued: false };
  for await (const { name, data } of events(response.body)) {
    if (data === '[DONE]') return answer;
    const json = JSON.parse(data) as {
      choices?: { delta?: { content?: string } }[];
      muser?: Answer['muser'];
      error?: unknown;
    } & Progress;
    if (json.error !== undefined) throw new Error(data);
    if (name === 'muser.progress') {
      if (json.phase === 'queued' && json.where === 'remote') answer.queued = true;
      onProgress?.(json);
    } else {
      answer.text += json.choices?.[0]?.delta?.content ?? '';
      if (json.muser !== undefined) answer.muser = json.muser;
    }
  }
  throw new Error('the stream ended before the answer did');
}

async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: string }> {
  let rest = '';
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + text).split('\n\n');
    rest = blocks.pop() ?? '';
    for (const block of blocks) {
      const field = (name: string): string => new RegExp(`^${name}: ?(.*)$`, 'm').exec(block)?.[1] ?? '';
      if (field('data') !== '') yield { name: field('event'), data: field('data') };
    }
  }
}
