import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { fuzz, TargetProcess } from '../src/index.js';

const fixture = (mode: string) => ({
  command: process.execPath,
  args: [fileURLToPath(new URL('fixtures/fuzz-target.mjs', import.meta.url)), mode],
  cwd: fileURLToPath(new URL('.', import.meta.url)),
});
const options = (mode: string, seed: number) => ({
  target: fixture(mode),
  corpus: [Buffer.from('begin')],
  seed,
  durationMs: 20_000,
  maxInputBytes: 64,
});

describe('the fuzzer', () => {
  it('goes on from inputs that reached something new, up to one that fails', async () => {
    const { failure, kept } = await fuzz(options('steps', 1));
    expect(failure?.message).toContain('three steps deep');
    expect(failure?.input.subarray(0, 3)).toEqual(Buffer.from([1, 2, 3]));
    expect(kept.length).toBeGreaterThan(1);
  });

  it('tries the same inputs again with the same seed', async () => {
    const [one, other] = [await fuzz(options('steps', 7)), await fuzz(options('steps', 7))];
    expect(one).toEqual(other);
  });

  it('takes the death of the target for a failure of the input, with what it wrote', async () => {
    const target = await TargetProcess.start(fixture('dies'));
    const [well, dead] = await target.run([Buffer.from([1]), Buffer.from([2]), Buffer.from([3])]);
    expect(well).toEqual({ kind: 'known' });
    expect(dead).toMatchObject({ kind: 'failed', message: expect.stringMatching(/exit code 9[^]*last words/) });
    await target.stop();
  });

  it('runs the corpus as it is before anything else', async () => {
    const { failure, executions } = await fuzz({ ...options('dies', 1), corpus: [Buffer.from([1]), Buffer.from([2])] });
    expect(failure?.input).toEqual(Buffer.from([2]));
    expect(executions).toBe(2);
  });

  it('says when a target cannot be started', async () => {
    await expect(TargetProcess.start({ ...fixture('x'), command: '/nonexistent' })).rejects.toThrow(
      'could not be started',
    );
  });
});
