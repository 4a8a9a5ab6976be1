import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmdirSync } from 'node:fs';
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { startCli, runCli } from '../support/cli.js';
import { FileServer, writeHead } from '../support/file-server.js';
import { deferred } from '../support/deferred.js';
import { manifestOf, noise, sha256, temporaryFolder, testPull } from '../support/models.js';

const WEIGHTS = noise(400_000);
const FILES = { 'weights.bin': WEIGHTS };
const SENT = 200_000;

let folder: { path: string; remove: () => Promise<void> };
let server: FileServer;
beforeEach(async () => {
  folder = await temporaryFolder();
  server = await FileServer.start(FILES);
  await writeFile(join(folder.path, 'model.json'), JSON.stringify(manifestOf(FILES)));
});
afterEach(async () => {
  await server.close();
  await folder.remove();
});

const to = () => join(folder.path, 'to');
const part = () => join(to(), '.muser', `${sha256(WEIGHTS)}.part`);
const args = () => ['models', 'pull', join(folder.path, 'model.json'), '--from', server.url, '--to', to(), '--json'];

/** The server sends half of the file and then nothing; resolves when the client has asked. */
function sendHalf(): Promise<void> {
  const asked = deferred();
  server.misbehave = (request, response, bytes) => {
    writeHead(request, response, bytes);
    response.write(bytes.subarray(0, SENT));
    asked.resolve();
    return true;
  };
  return asked.promise;
}

/** Until the part has all that was sent. */
async function partIsWritten(): Promise<void> {
  await expect.poll(async () => (await stat(part()).catch(() => null))?.size, { timeout: 15_000 }).toBe(SENT);
}

describe('a pull that is interrupted', () => {
  it('by kill -9 goes on where it stopped', async () => {
    const asked = sendHalf();
    const run = startCli(args());
    await asked;
    await partIsWritten();
    run.kill('SIGKILL');
    await run;
    expect(existsSync(join(to(), 'weights.bin'))).toBe(false);

    server.misbehave = () => false;
    const again = await runCli(args());
    expect(again.exitCode).toBe(0);
    expect(JSON.parse(again.stdout)).toMatchObject({ files: [{ path: 'weights.bin', from: 'download' }] });
    expect(server.requests.at(-1)?.range).toBe(`bytes=${SENT}-`);
    expect(WEIGHTS.equals(await readFile(join(to(), 'weights.bin')))).toBe(true);
    expect(existsSync(part())).toBe(false);
  });

  it('by Ctrl-C ends with 130 and keeps its part', async () => {
    const asked = sendHalf();
    const run = startCli(args());
    await asked;
    await partIsWritten();
    run.kill('SIGINT');
    expect((await run).exitCode).toBe(130);
    expect((await stat(part())).size).toBe(SENT);
    expect(existsSync(join(to(), '.muser/lock'))).toBe(false);
  });

  it('holds off a second pull of the same model while it runs', async () => {
    const asked = sendHalf();
    const run = startCli(args());
    await asked;
    const second = await runCli(args());
    expect(second.exitCode).toBe(1);
    expect(JSON.parse(second.stdout)).toMatchObject({ error: { code: 'STATE_LOCKED' } });
    expect(second.stderr).toContain(`process ${run.pid}`);
    run.kill('SIGKILL');
    await run;
  });
});

/** A small file system needs the rights to mount one: as another user this case is skipped. */
const canMount = process.platform === 'linux' && process.getuid?.() === 0 && tryMount();
function tryMount(): boolean {
  const folder = mkdtempSync(join(tmpdir(), 'muser-mount-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', folder], { stdio: 'ignore' });
    execFileSync('umount', [folder]);
    return true;
  } catch {
    return false;
  } finally {
    rmdirSync(folder);
  }
}

describe('a full disk', () => {
  it('is seen before anything is fetched', async () => {
    const manifest = manifestOf(FILES);
    const [file] = manifest.files;
    const huge = { ...manifest, files: [{ path: 'weights.bin', sha256: file?.sha256 ?? '', size: 2 ** 40 }] };
    const failure = await testPull(server.url, { manifest: huge, folder: to() }).catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'RESOURCE_EXHAUSTED', message: expect.stringMatching(/needs .* TB more/) });
    expect(server.requests).toHaveLength(0);
  });

  it.skipIf(!canMount)('while writing is a clear error, and the part stays', async () => {
    // 72 MiB pass the look at the free space; what is written meanwhile takes them away.
    const target = to();
    await mkdir(target);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=72m', 'tmpfs', target]);
    try {
      server.misbehave = (request, response, bytes) => {
        spawnSync('dd', ['if=/dev/zero', `of=${join(target, 'filler')}`, 'bs=1M'], { stdio: 'ignore' });
        writeHead(request, response, bytes);
        response.end(bytes);
        return true;
      };
      const pulled = testPull(server.url, { manifest: manifestOf(FILES), folder: target });
      await expect(pulled).rejects.toMatchObject({
        code: 'RESOURCE_EXHAUSTED',
        message: expect.stringContaining('disk is full'),
      });
      expect(server.requests).toHaveLength(1);
      expect(existsSync(join(target, 'weights.bin'))).toBe(false);
    } finally {
      execFileSync('umount', [target]);
    }
  });
});
