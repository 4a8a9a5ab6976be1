import type { IncomingMessage } from 'node:http';
import type { ErrorCode } from '@muser/protocol';
import { z } from 'zod';
import { CliError, EXIT } from './exit.js';
import { openRequest, readBody, requestJson, UnreachableError } from './http.js';
import { SseParser, type SseEvent } from './sse.js';
import { printable } from './terminal.js';

/** A decoder sends a keep-alive every 5 s while it prefills and a token often while it decodes. */
const IDLE_LIMIT_MS = 60_000;

export type PrefillChoice = 'auto' | 'local' | 'remote';

const fallbackSchema = z.object({ code: z.string(), message: z.string() }).nullable();

const progressSchema = z.object({
  phase: z.enum(['queued', 'prefill', 'transfer', 'decode']),
  where: z.enum(['local', 'remote']).optional(),
  tokens: z.number().default(0),
  total: z.number().default(0),
  tokensPerSecond: z.number().default(0),
  bytes: z.number().default(0),
  fallback: fallbackSchema.default(null),
});
export type Progress = z.infer<typeof progressSchema>;

const summarySchema = z.object({
  prefill: z.enum(['local', 'remote', 'resumed']),
  fallback: fallbackSchema,
  promptTokens: z.number(),
  cachedTokens: z.number(),
  ttftMs: z.number(),
  kvBytes: z.number(),
  shards: z.number(),
  overlap: z.number(),
  producer: z.object({ nodeId: z.string(), name: z.string(), backend: z.string() }).nullable(),
  timeline: z.record(z.string(), z.number()),
});
/** The `muser` field of an answer: which way it went and what that took. */
export type Summary = z.infer<typeof summarySchema>;

const chunkSchema = z.object({
  choices: z.array(
    z.object({
      delta: z.object({ content: z.string().nullish() }).optional(),
      finish_reason: z.string().nullish(),
    }),
  ),
  muser: z.unknown().optional(),
});

const errorSchema = z.object({
  error: z.object({ message: z.string(), code: z.union([z.string(), z.number()]).nullish() }),
});

const healthSchema = z.object({
  status: z.string(),
  model: z.unknown(),
  producers: z.array(z.object({ nodeId: z.string(), name: z.string(), state: z.string() })),
  coordinator: z.string(),
});
export type Health = z.infer<typeof healthSchema>;

export interface ChatRequest {
  message: string;
  prefill: PrefillChoice;
  maxTokens: number;
}

export type ChatEvent =
  { type: 'text'; text: string } | { type: 'progress'; progress: Progress } | { type: 'finished'; summary: Summary };

/** Speaks to one decoder over its HTTP interface. */
export class DecoderClient {
  constructor(readonly base: URL) {}

  async health(signal: AbortSignal, timeoutMs = 5_000): Promise<Health> {
    const answer = await this.#guard(signal, () =>
      requestJson({ method: 'GET', url: this.#at('/health'), signal, timeoutMs }),
    );
    if (answer.status !== 200) throw failure(answer.status, answer.body);
    return check(healthSchema, answer.body, 'health');
  }

  /**
   * Sends one message, greedily decoded, and yields what comes back until the decoder ends the stream properly.
   * Breaking out, or aborting the signal, cancels the request at the decoder.
   */
  async *chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<ChatEvent> {
    const idle = new AbortController();
    const both = AbortSignal.any([signal, idle.signal]);
    const response = await this.#guard(signal, () =>
      openRequest({ method: 'POST', url: this.#at('/v1/chat/completions'), json: chatBody(request), signal: both }),
    );
    if (response.statusCode !== 200) throw failure(response.statusCode ?? 0, await readFailure(response));
    const stop = (): void => {
      response.destroy(both.reason instanceof Error ? both.reason : new Error('aborted'));
    };
    const timer = setTimeout(() => idle.abort(stalled()), IDLE_LIMIT_MS);
    both.addEventListener('abort', stop, { once: true });
    try {
      yield* this.#events(response, () => timer.refresh());
    } catch (error) {
      throw both.aborted ? both.reason : lost(error);
    } finally {
      clearTimeout(timer);
      both.removeEventListener('abort', stop);
      response.destroy();
    }
  }

  async *#events(response: IncomingMessage, alive: () => void): AsyncGenerator<ChatEvent> {
    const parser = new SseParser();
    let summary: Summary | null = null;
    for await (const bytes of response as AsyncIterable<Buffer>) {
      alive();
      for (const event of parser.push(bytes)) {
        if (event.event === 'message' && event.data === '[DONE]') {
          if (summary === null) throw truncated();
          yield { type: 'finished', summary };
          return;
        }
        for (const chatEvent of readEvent(event)) {
          if (chatEvent.type === 'finished') summary = chatEvent.summary;
          else yield chatEvent;
        }
      }
    }
    // The end of the stream is no success: only [DONE] after the summary is.
    throw truncated();
  }

  /** Turns an unreachable decoder into exit code 3, whatever the reason. */
  async #guard<T>(signal: AbortSignal, run: () => Promise<T>): Promise<T> {
    try {
      return await run();
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (error instanceof UnreachableError) throw unreachable(this.base, error);
      throw lost(error);
    }
  }

  #at(path: string): URL {
    return new URL(`${this.base.pathname.replace(/\/+$/, '')}${path}`, this.base);
  }
}

function chatBody(request: ChatRequest): unknown {
  return {
    model: 'default',
    messages: [{ role: 'user', content: request.message }],
    stream: true,
    temperature: 0,
    max_tokens: request.maxTokens,
    muser: { prefill: request.prefill, progress: true },
  };
}

function readEvent(event: SseEvent): ChatEvent[] {
  const json = parseJson(event.data);
  if (event.event === 'muser.progress') {
    const progress = progressSchema.safeParse(json);
    // Progress is for the eyes only; a form that we do not know must not fail an answer.
    return progress.success ? [{ type: 'progress', progress: progress.data }] : [];
  }
  if (errorSchema.safeParse(json).success) throw failure(0, json);
  if (event.event !== 'message') return [];
  const chunk = check(chunkSchema, json, 'chunk');
  const events: ChatEvent[] = [];
  const text = chunk.choices[0]?.delta?.content;
  if (typeof text === 'string' && text !== '') events.push({ type: 'text', text });
  if (chunk.muser !== undefined) {
    events.push({ type: 'finished', summary: check(summarySchema, chunk.muser, 'summary') });
  }
  return events;
}

async function readFailure(response: IncomingMessage): Promise<unknown> {
  try {
    return parseJson(await readBody(response));
  } catch {
    return null;
  } finally {
    response.destroy();
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new CliError(EXIT.failed, 'MESSAGE_INVALID', 'the decoder sent something that is not JSON', { cause: error });
  }
}

function check<S extends z.ZodType>(schema: S, value: unknown, what: string): z.output<S> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const where = result.error.issues[0]?.path.join('.') ?? '';
  throw new CliError(
    EXIT.failed,
    'MESSAGE_INVALID',
    `the decoder's ${what} has an unknown form${where === '' ? '' : ` (${where})`}`,
    { advice: 'Is this a muser decoder, and of the same version?' },
  );
}

function failure(status: number, body: unknown): CliError {
  const parsed = errorSchema.safeParse(body);
  if (!parsed.success) {
    return new CliError(EXIT.failed, 'INTERNAL', `the decoder answered with HTTP status ${status}`);
  }
  const { message, code } = parsed.data.error;
  // The decoder's codes are of the closed list; one that this version does not know is shown as it is.
  return new CliError(EXIT.failed, String(code ?? 'INTERNAL') as ErrorCode, printable(message));
}

function unreachable(base: URL, error: Error): CliError {
  return new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', `no decoder at ${base.origin}: ${error.message}`, {
    advice: 'Start one with `muser dev`, or name another with --url or --state.',
    cause: error,
  });
}

function stalled(): CliError {
  return new CliError(EXIT.failed, 'STALLED', `no sign of life from the decoder for ${IDLE_LIMIT_MS / 1000} s`);
}

function truncated(): CliError {
  return new CliError(EXIT.failed, 'TRANSFER_TRUNCATED', 'the decoder ended the stream before the answer was complete');
}

function lost(error: unknown): Error {
  if (error instanceof CliError) return error;
  const reason = error instanceof Error ? error.message : String(error);
  return new CliError(EXIT.failed, 'UNAVAILABLE', `the connection to the decoder broke: ${printable(reason)}`, {
    cause: error,
  });
}
