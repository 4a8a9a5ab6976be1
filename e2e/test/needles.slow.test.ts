// Needle questions over the whole system: what the document says must survive the hand-off.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NeedleDocument } from '@muser/testing';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { chat } from './support/chat.js';
import { Dev } from './support/muser.js';
import { makeNeedles, messageOf } from './support/needles.js';

const QUESTIONS = 6;
const LEAST_RIGHT = 5;

let folder: string;
let dev: Dev;
let needles: NeedleDocument[];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-needles-'));
  needles = await makeNeedles({ count: QUESTIONS, shortest: 300, longest: 16_000 });
  dev = await Dev.start(join(folder, 'state'));
}, 300_000);

afterAll(async () => {
  await dev.destroy();
  await rm(folder, { recursive: true, force: true });
}, 60_000);

it(
  'answers from 300 to 16,000 tokens by remote prefill as locally, five of six right',
  { timeout: 900_000 },
  async () => {
    let right = 0;
    for (const needle of needles) {
      const local = await chat(dev.ready.decoder, messageOf(needle), 'local');
      expect(local.muser).toMatchObject({ prefill: 'local', cachedTokens: 0 });
      const remote = await chat(dev.ready.decoder, messageOf(needle), 'remote');
      expect(remote.muser).toMatchObject({ prefill: 'remote', fallback: null });
      expect(remote.text).toBe(local.text);
      if (remote.text.includes(needle.value)) right += 1;
    }
    expect(right).toBeGreaterThanOrEqual(LEAST_RIGHT);
  },
);
