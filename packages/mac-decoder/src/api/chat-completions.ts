import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { MuserError } from '@muser/protocol';
import type { HttpServer } from '@muser/service-kit';
import { invalidBody, toHttpError } from '../errors/http-errors.js';
import type { CompletionRequest } from '../requests/completion.js';
import type { RequestRunner } from '../requests/runner.js';
import { Timeline } from '../requests/timeline.js';
import type { ActiveRequests } from './active-requests.js';
import { AnswerStream } from './answer-stream.js';
import { chunkMaker, completionBody, type AnswerHead } from './bodies.js';
import { compileRequest, type CompileOptions } from './compile.js';
import { chatRequestSchema } from './schema.js';
import { SseWriter } from './sse-writer.js';

export interface ChatRouteOptions extends CompileOptions {
  readonly runner: RequestRunner;
  readonly active: ActiveRequests;
}

/** `POST /v1/chat/completions` in OpenAI's form, with the `muser` object in the answer. */
export function addChatRoute(app: HttpServer['app'], options: ChatRouteOptions): void {
  app.post('/v1/chat/completions', async (request, reply) => {
    const timeline = new Timeline();
    const parsed = chatRequestSchema.safeParse(request.body);
    if (!parsed.success) throw invalidBody(parsed.error);
    const chat = parsed.data;
    const head: AnswerHead = {
      id: `chatcmpl-${randomUUID()}`,
      created: Math.floor(Date.now() / 1_000),
      model: options.engine.identity.name,
    };
    return options.active.run(reply.raw, async (signal, abort) => {
      const compiled = await compileRequest(chat, head.id, timeline, options, signal);
      if (!chat.stream) return answerWhole(options.runner, compiled, head, signal);
      reply.hijack();
      await answerStreamed(options.runner, compiled, head, reply.raw, {
        includeUsage: chat.stream_options?.include_usage ?? false,
        withProgress: chat.muser?.progress ?? false,
        signal,
        abort,
      });
      return reply;
    });
  });
}

async function answerWhole(
  runner: RequestRunner,
  request: CompletionRequest,
  head: AnswerHead,
  signal: AbortSignal,
): Promise<object> {
  let answer = '';
  const sink = { text: (text: string) => void (answer += text), progress: () => undefined };
  const result = await runner.run(request, sink, signal);
  return completionBody(head, answer, result);
}

interface StreamedOptions {
  readonly includeUsage: boolean;
  readonly withProgress: boolean;
  readonly signal: AbortSignal;
  readonly abort: (reason: MuserError) => void;
}

/** Once the stream is open an error can only be told in it: as OpenAI does, by an event with `error` and no `[DONE]`. */
async function answerStreamed(
  runner: RequestRunner,
  request: CompletionRequest,
  head: AnswerHead,
  response: ServerResponse,
  { includeUsage, withProgress, signal, abort }: StreamedOptions,
): Promise<void> {
  const writer = new SseWriter(response);
  const chunks = chunkMaker(head, includeUsage);
  const stream = new AnswerStream({
    writer,
    contentChunk: chunks.content,
    withProgress,
    onGone: () => abort(new MuserError('CANCELLED', 'The client closed the connection.')),
  });
  try {
    writer.open();
    await writer.event(chunks.role());
    const result = await runner.run(request, stream, signal);
    await stream.finish();
    await writer.event(chunks.finish(result));
    if (includeUsage) await writer.event(chunks.usage(result));
    await writer.event('[DONE]');
  } catch (error) {
    await stream.abandon();
    const told: unknown = signal.aborted ? signal.reason : error;
    // Fails only where the client is gone, and then there is nobody to tell.
    await writer.event(toHttpError(told).body).catch(() => undefined);
  } finally {
    writer.end();
  }
}
