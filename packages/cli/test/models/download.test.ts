import { existsSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { breakAfter, FileServer, sendRange, writeHead } from '../support/file-server.js';
import { manifestOf, noise, QUICK, sha256, temporaryFolder, testPull } from '../support/models.js';

const FILES = { 'weights.bin': noise(300_000), 'hf/config.json': Buffer.from('{"a": 1}'), empty: Buffer.alloc(0) };
const WEIGHTS = FILES['weights.bin'];
const manifest = manifestOf(FILES);

let folder: { path: string; remove: () => Promise<void> };
let server: FileServer;
beforeEach(async () => {
  folder = await temporaryFolder();
  server = await FileServer.start(FILES);
});
afterEach(async () => {
  await server.close();
  await folder.remove();
});

const pulled = () => testPull(server.url, { manifest, folder: folder.path });
const weightsPart = () => join(folder.path, '.muser', `${sha256(WEIGHTS)}.part`);
const requestsOf = (path: string) => server.requests.filter((request) => request.path === path);

async function expectComplete(): Promise<void> {
  for (const [path, bytes] of Object.entries(FILES)) {
    expect(bytes.equals(await readFile(join(folder.path, path))), path).toBe(true);
  }
  expect((await readdir(join(folder.path, '.muser'))).sort()).toEqual(['manifest.json']);
}

describe('a well-behaved server', () => {
  it('gives every file, which then is not asked for again', async () => {
    const first = await pulled();
    await expectComplete();
    expect(first.files.map(({ from }) => from)).toEqual(['download', 'download', 'download']);
    expect(first.bytes).toBe(300_008);
    // The empty file needs no request.
    expect(server.requests.map(({ path }) => path).sort()).toEqual(['hf/config.json', 'weights.bin']);

    const second = await pulled();
    expect(second.files.map(({ from }) => from)).toEqual(['present', 'present', 'present']);
    expect(second.bytes).toBe(300_008);
    expect(server.requests).toHaveLength(2);
  });

  it('is asked for a file again whose bytes have changed on disk', async () => {
    await pulled();
    const bytes = Buffer.from(WEIGHTS);
    bytes.writeUInt8(bytes.readUInt8(77) ^ 1, 77);
    await writeFile(join(folder.path, 'weights.bin'), bytes);
    const again = await pulled();
    expect(again.bytes).toBe(300_008);
    expect(again.files.map(({ from }) => from)).toEqual(['download', 'present', 'present']);
    await expectComplete();
  });

  it('is asked once for two files of the same bytes', async () => {
    const twins = manifestOf({ 'weights.bin': WEIGHTS, 'b/copy.bin': WEIGHTS });
    const { files } = await testPull(server.url, { manifest: twins, folder: folder.path });
    expect(files.map(({ from }) => from)).toEqual(['download', 'duplicate']);
    expect(server.requests).toHaveLength(1);
    expect(WEIGHTS.equals(await readFile(join(folder.path, 'b/copy.bin')))).toBe(true);
  });

  it('sees no more requests at once than jobs', async () => {
    const many = Object.fromEntries(Array.from({ length: 6 }, (_, i) => [`f${i}`, noise(1000)]));
    Object.entries(many).forEach(([path, bytes]) => server.set(path, bytes));
    let [now, most] = [0, 0];
    server.misbehave = (_, response) => {
      now += 1;
      most = Math.max(most, now);
      response.on('close', () => (now -= 1));
      return false;
    };
    await testPull(server.url, { manifest: manifestOf(many), folder: folder.path, jobs: 3 });
    expect(most).toBeLessThanOrEqual(3);
  });
});

describe('a broken connection', () => {
  it('is resumed where it broke', async () => {
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin' || request.before >= 2) return false;
      breakAfter(request, response, bytes, 100_000);
      return true;
    };
    const { retries } = await pulled();
    await expectComplete();
    expect(retries).toHaveLength(2);
    const ranges = requestsOf('weights.bin').map(({ range }) => range);
    expect(ranges[0]).toBeNull();
    // What was under way when the connection broke may be lost, so where exactly it goes on is not certain.
    const offsets = ranges.slice(1).map((range) => Number(/\d+/.exec(range ?? '')?.[0]));
    expect(offsets[0]).toBeGreaterThan(0);
    expect(offsets[1]).toBeGreaterThan(offsets[0] ?? 0);
  });

  it('is given up after some attempts without progress, and the part is kept for the next pull', async () => {
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin') return false;
      if (request.before === 0) breakAfter(request, response, bytes, 150_000);
      else response.destroy();
      return true;
    };
    await expect(pulled()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE', exitCode: 3 });
    expect(requestsOf('weights.bin')).toHaveLength(1 + QUICK.attempts - 1);
    expect(existsSync(join(folder.path, 'weights.bin'))).toBe(false);
    const kept = readFileSync(weightsPart());
    expect(kept.length).toBeGreaterThan(0);
    expect(WEIGHTS.subarray(0, kept.length).equals(kept)).toBe(true);

    server.misbehave = () => false;
    await pulled();
    await expectComplete();
    expect(requestsOf('weights.bin').at(-1)?.range).toBe(`bytes=${kept.length}-`);
  });

  it('of a server that ignores ranges starts again, and ends when that makes no progress', async () => {
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin') return false;
      breakAfter({ ...request, range: null }, response, bytes, 100_000);
      return true;
    };
    await expect(pulled()).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
    expect(requestsOf('weights.bin').length).toBeLessThanOrEqual(QUICK.attempts + 3);
  });

  it('of a server that ignores ranges once is mended by a whole answer', async () => {
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin') return false;
      if (request.before === 0) breakAfter(request, response, bytes, 100_000);
      else sendRange({ ...request, range: null }, response, bytes);
      return true;
    };
    const { bytes, retries } = await pulled();
    await expectComplete();
    expect(bytes).toBe(300_008);
    expect(retries).toHaveLength(1);
  });

  it('is noticed when nothing comes any more', async () => {
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin' || request.before > 0) return false;
      writeHead(request, response, bytes);
      response.write(bytes.subarray(0, 1000));
      return true;
    };
    const { retries } = await testPull(server.url, {
      manifest,
      folder: folder.path,
      retries: { ...QUICK, stallMs: 100 },
    });
    expect(retries.join()).toContain('nothing came for 0.1 s');
    await expectComplete();
  });

  it('is noticed when the server does not even answer', async () => {
    server.misbehave = (request) => request.path === 'weights.bin' && request.before === 0;
    await testPull(server.url, { manifest, folder: folder.path, retries: { ...QUICK, stallMs: 100 } });
    await expectComplete();
  });

  it.each([500, 503, 429, 408])('with status %i is tried again', async (status) => {
    server.misbehave = (request, response) => {
      if (request.before > 0) return false;
      response.writeHead(status, { 'retry-after': '0' }).end();
      return true;
    };
    await pulled();
    await expectComplete();
  });

  it.each([
    [404, 'NOT_FOUND'],
    [401, 'PERMISSION_DENIED'],
    [403, 'PERMISSION_DENIED'],
    [400, 'PEER_UNREACHABLE'],
  ])('with status %i is not', async (status, code) => {
    server.misbehave = (_, response) => {
      response.writeHead(status).end();
      return true;
    };
    await expect(testPull(server.url, { manifest, folder: folder.path, jobs: 1 })).rejects.toMatchObject({ code });
    expect(server.requests).toHaveLength(1);
  });
});

describe('wrong bytes', () => {
  const wrong = Buffer.from(WEIGHTS);
  wrong.writeUInt8(wrong.readUInt8(5) ^ 0xff, 5);

  it('once: thrown away and fetched again', async () => {
    server.misbehave = (request, response) => {
      if (request.path !== 'weights.bin' || request.before > 0) return false;
      sendRange(request, response, wrong);
      return true;
    };
    const { retries, bytes } = await pulled();
    await expectComplete();
    expect(retries).toEqual([expect.stringContaining('another SHA-256')]);
    expect(bytes).toBe(300_008);
  });

  const always: [string, RegExp, (server: FileServer) => void][] = [
    ['another digest', /another SHA-256.*twice/, (s) => s.set('weights.bin', wrong)],
    ['a shorter file', /has 1000 bytes, the manifest says 300000/, (s) => s.set('weights.bin', WEIGHTS.subarray(0, 1000))],
    ['a longer file', /has 300001 bytes/, (s) => s.set('weights.bin', Buffer.concat([WEIGHTS, Buffer.alloc(1)]))],
    [
      'a longer answer without a length',
      /more than the 300000 bytes/,
      (s) => {
        s.misbehave = (request, response, bytes) => {
          if (request.path !== 'weights.bin') return false;
          response.writeHead(200);
          response.write(bytes);
          response.end(noise(100_000));
          return true;
        };
      },
    ],
    [
      'another range than asked for',
      /another range/,
      (s) => {
        s.misbehave = (request, response, bytes) => {
          if (request.path !== 'weights.bin') return false;
          response.writeHead(206, { 'content-range': `bytes 7-${bytes.length - 1}/${bytes.length}` });
          response.end(bytes.subarray(7));
          return true;
        };
      },
    ],
    [
      'a compressed answer',
      /encoded as gzip/,
      (s) => {
        s.misbehave = (request, response, bytes) => {
          if (request.path !== 'weights.bin') return false;
          response.writeHead(200, { 'content-encoding': 'gzip' }).end(bytes);
          return true;
        };
      },
    ],
  ];
  it.each(always)('always (%s): a clear error, and nothing of it stays', async (_, message, arrange) => {
    arrange(server);
    const failure = await pulled().catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'DIGEST_MISMATCH', message: expect.stringMatching(message) });
    expect(existsSync(join(folder.path, 'weights.bin'))).toBe(false);
    expect(existsSync(weightsPart())).toBe(false);
    expect(requestsOf('weights.bin')).toHaveLength(2);
  });

  it('in a part of an earlier run do not survive', async () => {
    await mkdir(join(folder.path, '.muser'));
    await writeFile(weightsPart(), noise(5_000));
    await pulled();
    await expectComplete();
  });

  it('in a part that is longer than the file do not survive', async () => {
    await mkdir(join(folder.path, '.muser'));
    await writeFile(weightsPart(), noise(WEIGHTS.length + 1));
    await pulled();
    await expectComplete();
  });

  it('do not replace a file that is there', async () => {
    await writeFile(join(folder.path, 'weights.bin'), 'the old file');
    server.set('weights.bin', wrong);
    await expect(pulled()).rejects.toMatchObject({ code: 'DIGEST_MISMATCH' });
    expect(await readFile(join(folder.path, 'weights.bin'), 'utf8')).toBe('the old file');
  });
});

describe('a cancel', () => {
  it('ends the pull at once with its reason, and the part serves the next one', async () => {
    const stop = new AbortController();
    server.misbehave = (request, response, bytes) => {
      if (request.path !== 'weights.bin') return false;
      writeHead(request, response, bytes);
      response.write(bytes.subarray(0, 50_000));
      return true;
    };
    let came = 0;
    const reason = new Error('stop');
    const running = testPull(server.url, {
      manifest,
      folder: folder.path,
      signal: stop.signal,
      events: {
        onBytes: (delta) => {
          came += delta;
          if (came >= 50_000) stop.abort(reason);
        },
        onFile: () => undefined,
        onRetry: () => undefined,
      },
    });
    await expect(running).rejects.toBe(reason);
    expect(WEIGHTS.subarray(0, 50_000).equals(readFileSync(weightsPart()).subarray(0, 50_000))).toBe(true);

    server.misbehave = () => false;
    await pulled();
    await expectComplete();
    expect(requestsOf('weights.bin').at(-1)?.range).toMatch(/^bytes=5\d{4}-$/);
  });
});
