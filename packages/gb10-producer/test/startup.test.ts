// What a start that cannot succeed says, and that it leaves nothing behind.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { configTable, createLogger, lockFolder } from '@muser/service-kit';
import { TestAuthority, writeIdentityFolder } from '@muser/testing';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { ENV_PREFIX, producerConfigSchema } from '../src/config.js';
import { identityDir, type Producer, startProducer } from '../src/producer.js';
import { PatternBackend } from './support/pattern-backend.js';

let stateDir: string;
let authority: TestAuthority;

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'muser-producer-'));
  authority = await TestAuthority.create();
});

afterEach(() => rm(stateDir, { recursive: true }));

function start(config: Record<string, unknown> = {}, signal = new AbortController().signal): Promise<Producer> {
  const parsed = producerConfigSchema.parse({ stateDir, model: 'unused', ...config });
  return startProducer(parsed, createLogger('producer', 'silent'), signal, () => Promise.resolve(new PatternBackend()));
}

async function enroll(role: 'producer' | 'decoder' = 'producer'): Promise<void> {
  await writeIdentityFolder(identityDir(stateDir), await authority.identity(role));
}

describe('a start', () => {
  it('without an identity is refused', async () => {
    await expect(start()).rejects.toMatchObject({ code: 'NOT_FOUND' });
  });

  it("with a decoder's identity is refused", async () => {
    await enroll('decoder');
    await expect(start()).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });

  it('with less staging than two chunks need is refused, with the numbers', async () => {
    await enroll();
    const open = (): Promise<PatternBackend> => Promise.resolve(new PatternBackend({ chunkTokens: 8192 }));
    const config = producerConfigSchema.parse({ stateDir, model: 'unused', budgets: { stagingBytes: 1 << 20 } });
    const started = startProducer(config, createLogger('producer', 'silent'), new AbortController().signal, open);
    await expect(started).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });

  it('in a folder that is in use is refused', async () => {
    await enroll();
    const first = await start();
    await expect(start()).rejects.toMatchObject({ code: 'STATE_LOCKED' });
    await first.close();
    await (await start()).close();
  });

  it('on a port that is in use is refused and leaves the folder free', async () => {
    await enroll();
    const first = await start();
    const otherDir = await mkdtemp(join(tmpdir(), 'muser-producer-'));
    await writeIdentityFolder(identityDir(otherDir), await authority.identity('producer'));
    const second = start({ stateDir: otherDir, port: first.address.port });
    await expect(second).rejects.toMatchObject({ code: 'PORT_IN_USE' });
    const lock = await lockFolder(otherDir);
    await lock.release();
    await first.close();
    await rm(otherDir, { recursive: true });
  });

  it('that is told to stop meanwhile stops and frees everything', async () => {
    await enroll();
    const stop = new AbortController();
    stop.abort(new Error('stop'));
    await expect(start({}, stop.signal)).rejects.toThrow('stop');
    await (await lockFolder(stateDir)).release();
  });
});

describe('the configuration', () => {
  it('needs a state folder and a model only', () => {
    expect(producerConfigSchema.parse({ stateDir: 's', model: 'm' })).toMatchObject({
      host: '127.0.0.1',
      port: 0,
      backend: 'llama',
      chunkTokens: 512,
      maxPromptTokens: 32_768,
      maxConcurrent: 1,
      queueLimit: 16,
      flashAttention: true,
      kvType: 'f16',
      pacing: null,
      exitWithParent: false,
    });
  });

  it.each([{ prot: 1 }, { budgets: { staging: 1 } }, { chunkTokens: 0 }, { maxPromptTokens: 131_073 }, { pacing: 0 }])(
    'refuses %j',
    (wrong) => {
      expect(producerConfigSchema.safeParse({ stateDir: 's', model: 'm', ...wrong }).success).toBe(false);
    },
  );

  it('has a description of every key', () => {
    expect(configTable(producerConfigSchema, ENV_PREFIX)).toContain('budgets.stagingBytesPerTransfer');
  });
});
