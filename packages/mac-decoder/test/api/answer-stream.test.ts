import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterEach, expect, test } from 'vitest';
import { AnswerStream } from '../../src/api/answer-stream.js';
import { SseWriter } from '../../src/api/sse-writer.js';
import type { RequestProgress } from '../../src/requests/progress.js';

const closers: (() => void)[] = [];
afterEach(() => {
  for (const closer of closers.splice(0)) closer();
});

/** A real response to a real client. */
async function exchange(): Promise<{
  response: ServerResponse;
  incoming: Promise<IncomingMessage>;
  hangUp: () => void;
}> {
  const server = createServer();
  closers.push(
    () => server.closeAllConnections(),
    () => server.close(),
  );
  const arrived = new Promise<ServerResponse>((resolve) => {
    server.on('request', (_request, response) => resolve(response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const call = httpRequest({ host: '127.0.0.1', port: (server.address() as AddressInfo).port });
  call.on('error', () => undefined);
  const incoming = new Promise<IncomingMessage>((resolve) => call.on('response', resolve));
  call.end();
  return { response: await arrived, incoming, hangUp: () => call.destroy() };
}

const progress = (tokens: number): RequestProgress => ({
  phase: 'prefill',
  where: 'local',
  tokens,
  total: 10,
  tokensPerSecond: 0,
  bytes: 0,
  fallback: null,
});

test('text arrives whole and in order, progress is named and limited', async () => {
  const { response, incoming } = await exchange();
  const writer = new SseWriter(response);
  const time = { ms: 0 };
  const stream = new AnswerStream({
    writer,
    contentChunk: (piece) => ({ piece }),
    withProgress: true,
    onGone: () => undefined,
    now: () => time.ms,
  });
  writer.open();
  for (let tokens = 0; tokens < 50; tokens++) stream.progress(progress(tokens));
  for (const piece of ['a', 'b', 'c']) stream.text(piece);
  await stream.finish();
  await writer.event('[DONE]');
  writer.end();
  const body = await text(await incoming);
  const pieces = [...body.matchAll(/^data: {"piece":"(.*)"}$/gm)].map((match) => match[1]);
  expect(pieces.join('')).toBe('abc');
  expect(body.match(/^event: muser\.progress$/gm)).toHaveLength(1);
  expect(body.endsWith('data: [DONE]\n\n')).toBe(true);
});

test('while nothing is said yet, comments keep the connection alive', async () => {
  const { response, incoming } = await exchange();
  const writer = new SseWriter(response);
  const stream = new AnswerStream({
    writer,
    contentChunk: (piece) => ({ piece }),
    withProgress: false,
    onGone: () => undefined,
    keepAliveMs: 5,
  });
  writer.open();
  let seen = '';
  for await (const part of await incoming) {
    seen += String(part);
    if (seen.split(': keep-alive\n\n').length > 3) break;
  }
  await stream.abandon();
  expect(seen.replaceAll(': keep-alive\n\n', '')).toBe('');
});

test('without the wish for it there is no progress', async () => {
  const { response, incoming } = await exchange();
  const writer = new SseWriter(response);
  const stream = new AnswerStream({
    writer,
    contentChunk: (piece) => ({ piece }),
    withProgress: false,
    onGone: () => undefined,
  });
  writer.open();
  stream.progress(progress(1));
  await stream.finish();
  writer.end();
  expect(await text(await incoming)).toBe('');
});

test('a slow reader gets all, while what waits for it is joined', async () => {
  const { response, incoming } = await exchange();
  const writer = new SseWriter(response);
  let chunks = 0;
  const stream = new AnswerStream({
    writer,
    contentChunk: (piece) => {
      chunks += 1;
      return { piece };
    },
    withProgress: false,
    onGone: () => undefined,
  });
  writer.open();
  const piece = 'x'.repeat(100_000);
  const reader = await incoming;
  for (let count = 0; count < 200; count++) {
    stream.text(piece);
    await new Promise(setImmediate);
  }
  const body = text(reader);
  await stream.finish();
  writer.end();
  const received = [...(await body).matchAll(/x+/g)].reduce((sum, match) => sum + match[0].length, 0);
  expect(received).toBe(200 * piece.length);
  expect(chunks).toBeLessThan(200);
});

test('a client that hangs up is noticed', async () => {
  const { response, incoming, hangUp } = await exchange();
  const writer = new SseWriter(response);
  const gone = new Promise<void>((resolve) => {
    const stream = new AnswerStream({
      writer,
      contentChunk: (piece) => ({ piece }),
      withProgress: false,
      onGone: resolve,
    });
    writer.open();
    void incoming.then(() => {
      hangUp();
      response.on('close', () => stream.text('too late'));
    });
  });
  await gone;
});

test('a client that stops reading is given up', async () => {
  const { response, incoming } = await exchange();
  const writer = new SseWriter(response, 50);
  writer.open();
  (await incoming).pause();
  const fill = async (): Promise<void> => {
    for (;;) await writer.event({ piece: 'x'.repeat(1 << 20) });
  };
  await expect(fill()).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(response.destroyed).toBe(true);
});
