import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { runCli, startCli, stdoutOf } from './support/cli.js';
import { deferred } from './support/deferred.js';
import {
  data,
  FakeDecoder,
  finish,
  openStream,
  progress,
  SUMMARY,
  textChunk,
  type Answering,
} from './support/decoder.js';

let folder: string;
let decoder: FakeDecoder | null;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-ask-'));
  decoder = null;
});
afterEach(async () => {
  await decoder?.close();
  await rm(folder, { recursive: true, force: true });
});

async function serve(answer: (answering: Answering) => void | Promise<void>): Promise<FakeDecoder> {
  decoder = await FakeDecoder.start(answer);
  return decoder;
}

function answerWith(...parts: string[]) {
  return ({ response }: Answering): void => {
    openStream(response);
    response.end(parts.join(''));
  };
}

async function file(name: string, text: string): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, text);
  return path;
}

describe('what is sent', () => {
  it('the documents in their order, then what is piped in, then the question, with blank lines between', async () => {
    const { url, requests } = await serve(answerWith(textChunk('yes'), finish()));
    const a = await file('a.md', '\ufeffA\n\nA2\n\n');
    const b = await file('b.md', '\n  B\r\n');
    const run = await runCli(['ask', '-f', a, '-f', b, '--url', url, 'Where', 'is it?'], {
      input: 'C\n',
      stdin: 'pipe',
    });
    expect(run).toMatchObject({ exitCode: 0, stdout: 'yes' });
    expect(requests).toEqual([
      {
        model: 'default',
        messages: [{ role: 'user', content: 'A\n\nA2\n\n  B\n\nC\n\nWhere is it?' }],
        stream: true,
        temperature: 0,
        max_tokens: 1024,
        muser: { prefill: 'auto', progress: true },
      },
    ]);
  });

  it.each([
    [['--local'], 'local'],
    [['--remote-prefill'], 'remote'],
    [['--prefill', 'remote'], 'remote'],
    [['--prefill', 'auto'], 'auto'],
  ])('%j as %s', async (flags, prefill) => {
    const { url, requests } = await serve(answerWith(finish()));
    await runCli(['ask', ...flags, '--max-tokens', '7', '--url', `${url}/v1`, 'x']);
    expect(requests).toMatchObject([{ max_tokens: 7, muser: { prefill } }]);
  });

  it('goes on without a standard input that says nothing', async () => {
    const { url } = await serve(answerWith(textChunk('yes'), finish()));
    const child = startCli(['ask', '--url', url, 'x'], { stdin: 'pipe' });
    expect(await child).toMatchObject({ exitCode: 0, stdout: 'yes' });
    expect((await child).stderr).toContain('standard input said nothing');
  });

  it('finds the decoder through the state folder and through MUSER_URL', async () => {
    const { url, requests } = await serve(answerWith(finish()));
    const endpoints = { decoder: url, coordinator: url, pids: { coordinator: 1, producer: 2, decoder: 3 } };
    await file('endpoints.json', JSON.stringify(endpoints));
    expect(await runCli(['ask', '--state', folder, 'x'])).toMatchObject({ exitCode: 0 });
    expect(await runCli(['ask', 'x'], { env: { MUSER_STATE: folder } })).toMatchObject({ exitCode: 0 });
    expect(await runCli(['ask', 'x'], { env: { MUSER_URL: url } })).toMatchObject({ exitCode: 0 });
    expect(requests).toHaveLength(3);
  });
});

describe('what is shown', () => {
  const stream = [
    progress({ phase: 'queued', where: 'remote' }),
    progress({ phase: 'prefill', where: 'remote', tokens: 512, total: 8012, tokensPerSecond: 3456.7 }),
    progress({ phase: 'prefill', where: 'remote', tokens: 1024, total: 8012, tokensPerSecond: 3456.7 }),
    progress({ phase: 'transfer', where: 'remote', tokens: 1024, total: 8012, bytes: 2_100_000 }),
    progress({ phase: 'somewhere', where: 'else' }),
    ': keep-alive\n\n',
    textChunk('in the '),
    textChunk('attic 漢🎼'),
    finish(),
  ];

  it('a line for each phase, the text as it is, a summary', async () => {
    const { url } = await serve(answerWith(...stream));
    const run = await runCli(['ask', '--url', url, 'x']);
    expect(run).toMatchObject({ exitCode: 0, stdout: 'in the attic 漢🎼' });
    expect(run.stderr.split('\n')).toEqual([
      'waiting',
      'remote prefill · 512 of 8,012 tokens · 3,457 tokens/s',
      'receiving the KV cache · 1,024 of 8,012 tokens · 2.10 MB received',
      'prefilled by bench · 8,012 tokens · first token after 1.23 s · 12.3 MB of KV in 34 shards',
    ]);
  });

  it('nothing with --quiet', async () => {
    const { url } = await serve(answerWith(...stream));
    expect(await runCli(['ask', '-q', '--url', url, 'x'])).toMatchObject({ exitCode: 0, stderr: '' });
  });

  it('the reason for a fallback, once', async () => {
    const fallback = { code: 'NO_PRODUCER', message: 'there is\u001b[31m no producer' };
    const { url } = await serve(
      answerWith(
        progress({ phase: 'prefill', where: 'local', fallback }),
        finish({ ...SUMMARY, prefill: 'local', fallback, kvBytes: 0, shards: 0, producer: null }),
      ),
    );
    const { stderr } = await runCli(['ask', '--remote-prefill', '--url', url, 'x']);
    expect(stderr.match(/going on locally: there is\[31m no producer \(NO_PRODUCER\)/g)).toHaveLength(1);
    expect(stderr).toContain('prefilled locally');
  });

  it('the timeline with --stats, also with --quiet', async () => {
    const { url } = await serve(answerWith(...stream));
    const { stderr } = await runCli(['ask', '-q', '--stats', '--url', url, 'x']);
    expect(stderr).toMatch(/1\.23 s +\+1\.23 s +first token\n/);
    expect(stderr).toMatch(/installed before the prefill ended +87 % of the bytes/);
  });

  it('exactly the documented object with --json', async () => {
    const { url } = await serve(answerWith(...stream));
    const { stdout } = await runCli(['ask', '--json', '--url', url, 'x']);
    const { prefill, fallback, promptTokens, cachedTokens, ttftMs, kvBytes, timeline } = SUMMARY;
    expect(stdout.split('\n')).toHaveLength(1);
    expect(JSON.parse(stdout)).toEqual({
      answer: 'in the attic 漢🎼',
      ...{ prefill, fallback, promptTokens, cachedTokens, ttftMs, kvBytes, timeline },
    });
  });
});

describe('failures', () => {
  it.each([
    [
      'an error body',
      503,
      { error: { message: 'The queue is full.', code: 'QUEUE_FULL' } },
      /queue is full.*QUEUE_FULL/,
    ],
    ['an error body that is none', 500, 'oops', /HTTP status 500/],
    ['a server that is no decoder', 404, '<html>', /HTTP status 404/],
  ])('%s', async (_, status, body, message) => {
    const { url } = await serve(({ response }) => {
      response.writeHead(status).end(typeof body === 'string' ? body : JSON.stringify(body));
    });
    const run = await runCli(['ask', '--url', url, 'x']);
    expect(run).toMatchObject({ exitCode: 1, stdout: '' });
    expect(run.stderr).toMatch(message);
  });

  it.each([
    [
      'an error in the stream',
      data({ error: { message: 'The engine failed.', code: 'ENGINE_FAILED' } }),
      'ENGINE_FAILED',
    ],
    ['an end without [DONE]', textChunk('in the'), 'TRANSFER_TRUNCATED'],
    ['[DONE] without a summary', data('[DONE]'), 'TRANSFER_TRUNCATED'],
    ['a half event at the end', textChunk('a') + 'data: [DONE]\n', 'TRANSFER_TRUNCATED'],
    ['something that is not JSON', data('{'), 'MESSAGE_INVALID'],
    ['a chunk of another form', data({ choices: 1 }), 'MESSAGE_INVALID'],
    ['a summary of another form', finish({ prefill: 'maybe' }), 'MESSAGE_INVALID'],
  ])('%s', async (_, text, code) => {
    const { url } = await serve(answerWith(text));
    const run = await runCli(['ask', '--json', '--url', url, 'x']);
    expect(run.exitCode).toBe(1);
    expect(JSON.parse(run.stdout)).toMatchObject({ error: { code } });
    expect(run.stderr).toContain(code);
    expect(run.stderr).not.toMatch(/\n\s+at /);
  });

  it('a connection that breaks in the middle', async () => {
    const { url } = await serve(({ response }) => {
      openStream(response);
      response.write(textChunk('in the'), () => response.destroy());
    });
    const run = await runCli(['ask', '--url', url, 'x']);
    expect(run).toMatchObject({ exitCode: 1, stdout: 'in the' });
    expect(run.stderr).toMatch(/connection to the decoder broke.*UNAVAILABLE/);
  });

  it('an answer that does not come in time is cancelled', async () => {
    const { promise: closed, resolve } = deferred();
    const { url } = await serve(({ response }) => {
      response.on('close', resolve);
      openStream(response);
    });
    const run = await runCli(['ask', '--timeout', '1', '--url', url, 'x']);
    expect(run.exitCode).toBe(1);
    expect(run.stderr).toContain('DEADLINE_EXCEEDED');
    await closed;
  });
});

describe('an end that the user wants', () => {
  it('Ctrl-C cancels the request at the decoder and ends with code 130', async () => {
    const { promise: closed, resolve } = deferred();
    const { url } = await serve(({ response }) => {
      response.on('close', resolve);
      openStream(response);
      response.write(textChunk('in the'));
    });
    const child = startCli(['ask', '--url', url, 'x']);
    await once(stdoutOf(child), 'data');
    child.kill('SIGINT');
    const { exitCode, stdout, stderr } = await child;
    await closed;
    expect({ exitCode, stdout, stderr }).toEqual({ exitCode: 130, stdout: 'in the', stderr: 'cancelled' });
  });

  it('Ctrl-C works before the decoder has answered, too', async () => {
    const { promise: asked, resolve } = deferred();
    const { url } = await serve(() => resolve());
    const child = startCli(['ask', '--url', url, 'x']);
    await asked;
    child.kill('SIGINT');
    expect((await child).exitCode).toBe(130);
  });

  it('a reader that goes away ends it quietly and cancels the request', async () => {
    const { promise: closed, resolve } = deferred();
    const { url } = await serve(({ response }) => {
      openStream(response);
      const timer = setInterval(() => response.write(textChunk('word\n')), 5);
      response.on('close', () => {
        clearInterval(timer);
        resolve();
      });
    });
    const child = startCli(['ask', '--url', url, 'x'], { buffer: { stdout: false } });
    await once(stdoutOf(child), 'data');
    stdoutOf(child).destroy();
    const { exitCode, stderr } = await child;
    await closed;
    expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: '' });
  });
});
