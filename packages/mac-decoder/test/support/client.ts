import type { MuserReport } from '../../src/requests/completion.js';

export interface Answer {
  status: number;
  text: string;
  finishReason: string;
  usage: { prompt_tokens: number; completion_tokens: number };
  muser: MuserReport;
}

/** Asks greedily, not streamed, and fails unless there is an answer. */
export async function ask(
  url: string,
  prompt: string,
  muser: object,
  more: object = {},
  signal: AbortSignal | null = null,
): Promise<Answer> {
  const messages = [{ role: 'user', content: prompt }];
  const response = await post(url, { messages, temperature: 0, max_tokens: 32, muser, ...more }, { signal });
  const body = (await response.json()) as {
    choices: { message: { content: string }; finish_reason: string }[];
    usage: Answer['usage'];
    muser: MuserReport;
  };
  const choice = body.choices?.[0];
  if (choice === undefined) throw new Error(`no answer (${response.status}): ${JSON.stringify(body)}`);
  return {
    status: response.status,
    text: choice.message.content,
    finishReason: choice.finish_reason,
    usage: body.usage,
    muser: body.muser,
  };
}

export function post(url: string, body: unknown, init: RequestInit = {}): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...init,
  });
}

export interface SseEvent {
  name: string | null;
  data: string;
}

/** Events and comments of a stream, as they were sent. */
export function parseSse(text: string): { events: SseEvent[]; comments: string[] } {
  const events: SseEvent[] = [];
  const comments: string[] = [];
  for (const block of text.split('\n\n').filter((part) => part !== '')) {
    const lines = block.split('\n');
    if (block.startsWith(':')) comments.push(block.slice(1).trim());
    else {
      const field = (name: string): string | null =>
        lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? null;
      events.push({ name: field('event'), data: field('data') ?? '' });
    }
  }
  return { events, comments };
}
