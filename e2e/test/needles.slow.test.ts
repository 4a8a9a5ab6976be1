// Needle questions over the whole system: what the document says must survive the hand-off.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Dev, muser } from './support/muser.js';
import { writeNeedles, type NeedleFile } from './support/needles.js';

const QUESTIONS = 20;

let folder: string;
let dev: Dev;
let needles: NeedleFile[];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'muser-needles-'));
  needles = await writeNeedles(folder, { count: QUESTIONS, shortest: 1_000, longest: 16_000 });
  dev = await Dev.start(join(folder, 'state'));
}, 300_000);

afterAll(async () => {
  await dev.destroy();
  await rm(folder, { recursive: true, force: true });
}, 60_000);

async function ask(way: '--local' | '--remote-prefill', { file, needle }: NeedleFile) {
  const run = await muser(['ask', '--json', '--state', dev.state, way, '-f', file, needle.question]);
  expect(run, run.stderr).toMatchObject({ exitCode: 0 });
  return JSON.parse(run.stdout) as { answer: string; prefill: string; fallback: unknown };
}

it(
  'answers from 1,000 to 16,000 tokens by remote prefill as locally, nine of ten right',
  { timeout: 1_800_000 },
  async () => {
    let right = 0;
    for (const needle of needles) {
      const local = await ask('--local', needle);
      const remote = await ask('--remote-prefill', needle);
      expect(remote).toMatchObject({ prefill: 'remote', fallback: null, answer: local.answer });
      if (remote.answer.includes(needle.needle.value)) right += 1;
    }
    expect(right).toBeGreaterThanOrEqual(QUESTIONS * 0.9);
  },
);
