import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { afterEach, describe, expect, it } from 'vitest';

const FIXTURE = fileURLToPath(new URL('fixtures/process.mjs', import.meta.url));
const running = new Set<ChildProcessWithoutNullStreams>();
afterEach(() => {
  for (const child of running) child.kill('SIGKILL');
  running.clear();
});

function launch(...args: string[]) {
  const child = spawn(process.execPath, [FIXTURE, ...args]);
  running.add(child);
  let stderr = '';
  child.stderr.on('data', (data: Buffer) => (stderr += data.toString()));
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const exit = once(child, 'close') as Promise<[number | null, string | null]>;
  return {
    child,
    firstLine: async () => JSON.parse(String((await lines.next()).value)) as Record<string, unknown>,
    async exitCode() {
      const [code, signal] = await exit;
      running.delete(child);
      return code ?? signal;
    },
    stderr: () => stderr,
    async stderrHas(text: string) {
      while (!stderr.includes(text)) await once(child.stderr, 'data');
    },
  };
}

describe('runProcess', () => {
  it.each(['SIGINT', 'SIGTERM'] as const)('closes on %s and ends with 0', async (signal) => {
    const fixture = launch('starts', 'closes');
    expect(await fixture.firstLine()).toEqual({ ready: true, pid: fixture.child.pid });
    fixture.child.kill(signal);
    expect(await fixture.exitCode()).toBe(0);
    expect(fixture.stderr()).toContain('closed');
    expect(fixture.stderr()).toContain(`closes on ${signal}`);
  });

  it('closes when its parent is gone, if told to', async () => {
    const fixture = launch('starts', 'closes', 'parent');
    await fixture.firstLine();
    fixture.child.stdin.end();
    expect(await fixture.exitCode()).toBe(0);
    expect(fixture.stderr()).toContain('parent is gone');
  });

  it('does not mind the end of standard input otherwise', async () => {
    const fixture = launch('starts', 'closes');
    fixture.child.stdin.end();
    await fixture.firstLine();
    fixture.child.kill('SIGTERM');
    expect(await fixture.exitCode()).toBe(0);
    expect(fixture.stderr()).not.toContain('parent is gone');
  });

  it('ends with a code of its own when the close takes longer than the limit', async () => {
    const fixture = launch('starts', 'hangs');
    await fixture.firstLine();
    fixture.child.kill('SIGTERM');
    expect(await fixture.exitCode()).toBe(3);
    expect(fixture.stderr()).toContain('did not close within 300 ms');
  });

  it('ends at once on a second signal', async () => {
    const fixture = launch('starts', 'hangs for long');
    await fixture.firstLine();
    fixture.child.kill('SIGTERM');
    await fixture.stderrHas('closes on SIGTERM');
    fixture.child.kill('SIGINT');
    expect(await fixture.exitCode()).toBe(130);
  });

  it('can be stopped while it starts', async () => {
    const fixture = launch('slow', 'closes');
    await fixture.stderrHas('starting');
    fixture.child.kill('SIGTERM');
    expect(await fixture.exitCode()).toBe(0);
  });

  it('tells whoever waits for the ready line why it failed', async () => {
    const fixture = launch('fails', 'closes');
    expect(await fixture.firstLine()).toEqual({
      ready: false,
      error: { code: 'MODEL_LOAD_FAILED', message: 'no such model' },
    });
    expect(await fixture.exitCode()).toBe(1);
  });

  it("tells a failure that Node reports by a code of the closed list, not by Node's", async () => {
    const line = await launch('reads a folder', 'closes').firstLine();
    expect(line).toMatchObject({
      ready: false,
      error: { code: 'INTERNAL', message: expect.stringContaining('EISDIR') as string },
    });
  });

  it('has an exit code of its own for a wrong configuration', async () => {
    expect(await launch('config', 'closes').exitCode()).toBe(2);
  });

  it('ends with 1 when the close fails', async () => {
    const fixture = launch('starts', 'fails');
    await fixture.firstLine();
    fixture.child.kill('SIGTERM');
    expect(await fixture.exitCode()).toBe(1);
    expect(fixture.stderr()).toContain('close went wrong');
  });

  it('logs an error that nobody caught and ends', async () => {
    const fixture = launch('crashes', 'closes');
    expect(await fixture.exitCode()).toBe(1);
    expect(fixture.stderr()).toContain('forgotten');
  });

  it('survives that nobody reads its output any more', async () => {
    const fixture = launch('starts', 'closes');
    fixture.child.stdout.destroy();
    await fixture.stderrHas('is ready');
    fixture.child.stderr.destroy();
    fixture.child.kill('SIGTERM');
    expect(await fixture.exitCode()).toBe(0);
  });
});
