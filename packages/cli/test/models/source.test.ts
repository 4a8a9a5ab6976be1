import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hubSource, mirrorSource, openWeb, urlBelow } from '../../src/models/transfer/source.js';
import { runCli } from '../support/cli.js';
import { FileServer } from '../support/file-server.js';
import { manifestOf, noise, temporaryFolder, testPull } from '../support/models.js';

const FILES = { 'a.bin': noise(1000) };
const manifest = manifestOf(FILES);

let folder: { path: string; remove: () => Promise<void> };
const servers: FileServer[] = [];
async function serve(files: Record<string, Buffer>, tls?: { key: string; cert: string }): Promise<FileServer> {
  const server = await FileServer.start(files, tls);
  servers.push(server);
  return server;
}
beforeEach(async () => {
  folder = await temporaryFolder();
});
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
  await folder.remove();
});

/** A certificate for localhost that only this run trusts. */
function certificate(): { key: string; cert: string; certPath: string } {
  const [keyPath, certPath] = [join(folder.path, 'key.pem'), join(folder.path, 'cert.pem')];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', keyPath];
  execFileSync('openssl', ['req', '-x509', ...key, '-out', certPath, '-days', '1', ...subject], { stdio: 'ignore' });
  return { key: readFileSync(keyPath, 'utf8'), cert: readFileSync(certPath, 'utf8'), certPath };
}

/** Pulls with the built command from a hub at `url`, with a token. */
function pullFromHub(url: string, env: Record<string, string> = {}) {
  return runCli(['models', 'pull', join(folder.path, 'model.json'), '--to', join(folder.path, 'to')], {
    env: { MUSER_HUB_URL: url, MUSER_HUB_TOKEN: 'hf_sekret', HOME: folder.path, ...env },
  });
}

describe('redirects', () => {
  it('on the same host are followed', async () => {
    const server = await serve(FILES);
    server.misbehave = (request, response) => {
      if (request.path !== 'x/a.bin') return false;
      response.writeHead(302, { location: '/a.bin' }).end();
      return true;
    };
    await testPull(`${server.url}/x`, { manifest, folder: folder.path });
    expect(server.requests.map(({ path }) => path)).toEqual(['x/a.bin', 'a.bin']);
  });

  it('to another host over plain http are refused, once and for all', async () => {
    const [server, other] = [await serve({}), await serve(FILES)];
    server.misbehave = (_, response) => {
      response.writeHead(302, { location: `${other.url}/a.bin` }).end();
      return true;
    };
    await expect(testPull(server.url, { manifest, folder: folder.path })).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
      message: expect.stringContaining('only https'),
    });
    expect(server.requests).toHaveLength(1);
    expect(other.requests).toHaveLength(0);
  });

  it.each(['file:///etc/passwd', 'ftp://x/y', 'http://[', 'gopher://a'])('to %s are refused', async (location) => {
    const server = await serve({});
    server.misbehave = (_, response) => {
      response.writeHead(302, { location }).end();
      return true;
    };
    await expect(testPull(server.url, { manifest, folder: folder.path })).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
    });
  });

  it('in a circle end', async () => {
    const server = await serve({});
    server.misbehave = (_, response) => {
      response.writeHead(307, { location: '/a.bin' }).end();
      return true;
    };
    await expect(testPull(server.url, { manifest, folder: folder.path })).rejects.toMatchObject({
      message: expect.stringContaining('more than 5 times'),
    });
    expect(server.requests).toHaveLength(6);
  });
});

describe('the token', () => {
  it('goes to the hub, and not to the https host that it redirects to', async () => {
    const { key, cert, certPath } = certificate();
    const store = await serve(FILES, { key, cert });
    const hub = await serve({});
    hub.misbehave = (_, response) => {
      response.writeHead(302, { location: `${store.url}/a.bin` }).end();
      return true;
    };
    await writeFile(join(folder.path, 'model.json'), JSON.stringify(manifest));
    const run = await pullFromHub(hub.url, { NODE_EXTRA_CA_CERTS: certPath });
    expect(run).toMatchObject({ exitCode: 0 });
    expect(hub.requests).toMatchObject([
      { path: `owner/name/resolve/${'0'.repeat(40)}/a.bin`, authorization: 'Bearer hf_sekret' },
    ]);
    expect(store.requests).toMatchObject([{ path: 'a.bin', authorization: null }]);
    expect(FILES['a.bin'].equals(await readFile(join(folder.path, 'to/a.bin')))).toBe(true);
    expect(run.stdout + run.stderr).not.toContain('sekret');
  });

  it('is in no message when the hub refuses it', async () => {
    const hub = await serve({});
    hub.misbehave = (_, response) => {
      response.writeHead(403).end();
      return true;
    };
    await writeFile(join(folder.path, 'model.json'), JSON.stringify(manifest));
    const run = await pullFromHub(hub.url);
    expect(run.exitCode).toBe(1);
    expect(run.stderr).toContain('MUSER_HUB_TOKEN');
    expect(run.stdout + run.stderr).not.toContain('sekret');
  });

  it('never goes over plain http to another machine, nor to a mirror', () => {
    expect(() => hubSource({ MUSER_HUB_URL: 'http://hub.example', MUSER_HUB_TOKEN: 'x' })).toThrow(/plain http/);
    expect(hubSource({ MUSER_HUB_URL: 'http://127.0.0.1:1', MUSER_HUB_TOKEN: 'x' }).token).toBe('x');
    expect(mirrorSource('https://mirror.example/m').token).toBeNull();
  });

  it('cannot smuggle a header', () => {
    expect(() => hubSource({ MUSER_HUB_TOKEN: 'x\r\nhost: y' })).toThrow(/character/);
  });

  it('is not sent to a certificate that nobody trusts', async () => {
    const { key, cert } = certificate();
    const hub = await serve(FILES, { key, cert });
    const source = { base: new URL(hub.url), token: 'x' };
    await expect(openWeb(source, urlBelow(source.base, 'a.bin'), {}, AbortSignal.timeout(5000))).rejects.toThrow();
    expect(hub.requests).toHaveLength(0);
  });
});

describe('addresses', () => {
  it('stay below their base, whatever the path', () => {
    expect(urlBelow(new URL('https://h/base/'), 'a b/#?.bin').href).toBe('https://h/base/a%20b/%23%3F.bin');
  });

  it.each(['ftp://x', 'nonsense', 'https://user:pw@host/'])('%s is refused as a mirror', (url) => {
    expect(() => mirrorSource(url)).toThrow();
  });
});
