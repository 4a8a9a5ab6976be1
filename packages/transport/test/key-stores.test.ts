// Where a node's identity key is kept. File and systemd credential are real files; the macOS keychain's command lines are
// compared as text only: they have not run on a Mac.
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { generateSigningKey, nodeIdOf, signingKeyFromSeed } from '@muser/protocol';
import { writeIdentityFolder } from '@muser/testing';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { createIdentity, identityKeyPlace, installIdentity, loadIdentity } from '../src/index.js';
import { addCall, findCall } from '../src/identity/key-stores/keychain.js';
import { afterTest, authority, expectCode, producer } from './harness.js';

afterEach(() => vi.unstubAllEnvs());

async function folder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'muser-keys-'));
  afterTest(() => rm(dir, { recursive: true }));
  return join(dir, 'identity');
}

/** As systemd does for a service: a folder of its own, whose files the service may only read. */
async function credential(seed: Uint8Array | string): Promise<void> {
  const dir = await mkdtemp(join(tmpdir(), 'muser-credentials-'));
  afterTest(() => rm(dir, { recursive: true }));
  const text = typeof seed === 'string' ? seed : `${Buffer.from(seed).toString('base64')}\n`;
  await writeFile(join(dir, 'muser-identity'), text, { mode: 0o440 });
  vi.stubEnv('CREDENTIALS_DIRECTORY', dir);
}

async function enroll(dir: string): Promise<string> {
  const { nodeId } = await installIdentity(dir, await authority.issue(await createIdentity(dir, 'producer')));
  return nodeId;
}

describe('a file', () => {
  // promise: Without a keychain or a systemd credential the identity key is in a file that only its owner can read.
  it('is what there is without anything better, for its owner alone', async () => {
    const dir = await folder();
    const nodeId = await enroll(dir);
    const file = join(dir, 'identity.key');
    expect(((await stat(file)).mode & 0o777).toString(8)).toBe('600');
    const seed = Buffer.from(await readFile(file, 'utf8'), 'base64');
    expect(nodeIdOf(signingKeyFromSeed(seed).publicKey)).toBe(nodeId);
    expect(await readFile(join(dir, 'keys.json'), 'utf8')).not.toContain(seed.toString('base64'));
    expect(await identityKeyPlace(dir)).toBe(file);
  });

  it('that others can read, that is damaged or missing, is refused without a word of it', async () => {
    const dir = await folder();
    await enroll(dir);
    const file = join(dir, 'identity.key');
    await chmod(file, 0o640);
    await expectCode(loadIdentity(dir), 'CONFIG_INVALID');
    await chmod(file, 0o600);
    await writeFile(file, 'c2VjcmV0');
    expect((await expectCode(loadIdentity(dir), 'CONFIG_INVALID')).message).not.toContain('c2VjcmV0');
    await rm(file);
    await expectCode(loadIdentity(dir), 'CONFIG_INVALID');
  });

  it('may be that of the first version, which had both keys in one', async () => {
    const dir = await folder();
    await writeIdentityFolder(dir, producer);
    expect((await loadIdentity(dir)).nodeId).toBe(producer.nodeId);
    expect(await identityKeyPlace(dir)).toBe(join(dir, 'keys.json'));
  });
});

describe('a systemd credential', () => {
  // promise: As a systemd service a producer takes its identity key from an encrypted credential and writes it nowhere.
  it('is used when the service has one, and its key is written nowhere', async () => {
    const { seed, publicKey } = generateSigningKey();
    await credential(seed);
    const dir = await folder();
    expect(await enroll(dir)).toBe(nodeIdOf(publicKey));
    for (const name of await readdir(dir)) {
      expect(await readFile(join(dir, name), 'utf8')).not.toContain(Buffer.from(seed).toString('base64'));
    }
    expect((await loadIdentity(dir)).nodeId).toBe(nodeIdOf(publicKey));
    expect(await identityKeyPlace(dir)).toBe('the systemd credential muser-identity');
  });

  it('that is not there when the node starts: it says what to do', async () => {
    await credential(generateSigningKey().seed);
    const dir = await folder();
    await enroll(dir);
    vi.stubEnv('CREDENTIALS_DIRECTORY', undefined);
    expect((await expectCode(loadIdentity(dir), 'CONFIG_INVALID')).message).toContain('start that');
    await credential(generateSigningKey().seed);
    await expectCode(loadIdentity(dir), 'CERTIFICATE_INVALID');
  });

  it('that holds something else is refused without a word of it', async () => {
    await credential('c2VjcmV0');
    const error = await expectCode(createIdentity(await folder(), 'producer'), 'CONFIG_INVALID');
    expect(error.message).not.toContain('c2VjcmV0');
    await credential('s'.repeat(257));
    await expectCode(createIdentity(await folder(), 'producer'), 'MESSAGE_TOO_LARGE');
  });

  it('takes over the key of a file: the node stays the same', async () => {
    const dir = await folder();
    const nodeId = await enroll(dir);
    // The steps of deploy/gb10/README.md.
    await credential(await readFile(join(dir, 'identity.key'), 'utf8'));
    const keys = await readFile(join(dir, 'keys.json'), 'utf8');
    await writeFile(join(dir, 'keys.json'), keys.replace('"keyStore":"file"', '"keyStore":"credential"'));
    await rm(join(dir, 'identity.key'));
    expect((await loadIdentity(dir)).nodeId).toBe(nodeId);
  });
});

describe('the macOS keychain', () => {
  const account = '/Users/a "b"\\c/identity';

  it('gets the key over standard input, never on a command line', () => {
    const seed = new Uint8Array(32).fill(7);
    const secret = Buffer.from(seed).toString('base64');
    const { args, input } = addCall(account, seed);
    expect(args).toEqual(['-i']);
    expect(input).toBe(
      `"add-generic-password" "-s" "muser identity key" "-a" "/Users/a \\"b\\"\\\\c/identity" "-w" "${secret}"\n`,
    );
    expect(findCall(account)).toEqual({
      args: ['find-generic-password', '-s', 'muser identity key', '-a', account, '-w'],
      input: '',
    });
  });

  it.skipIf(process.platform === 'darwin')('says where there is none', async () => {
    const dir = await folder();
    await mkdir(dir, { mode: 0o700 });
    const error = await expectCode(createIdentity(dir, 'decoder', 'keychain'), 'CONFIG_INVALID');
    expect(error.message).toContain('macOS');
    expect(await readdir(dir)).toEqual([]);
  });
});
