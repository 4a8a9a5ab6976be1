import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { describe, expect, it, onTestFinished } from 'vitest';
import { cpuSeconds, processesBelow, treeCpuSeconds } from '../src/index.js';

/** Prints its id when it has used processor time, and starts a process that does the same and waits. */
const PROGRAM = `
  const { spawn } = require('node:child_process');
  process.title = 'a (name) with) blanks';
  while (process.cpuUsage().user < 200_000);
  console.log(process.pid);
  if (process.argv[1] === 'parent') spawn(process.execPath, ['-e', process.argv[2]], { stdio: ['inherit', 'inherit', 'inherit'] });
  process.stdin.resume().on('end', () => process.exit());
`;

describe.runIf(process.platform === 'linux')('the tree of processes', () => {
  it('has children and theirs, whatever they are called, with their processor time', async () => {
    const parent = spawn(process.execPath, ['-e', PROGRAM, 'parent', PROGRAM], { stdio: ['pipe', 'pipe', 'inherit'] });
    onTestFinished(() => void parent.stdin.end());
    const lines = createInterface({ input: parent.stdout })[Symbol.asyncIterator]();
    const pids = [Number((await lines.next()).value), Number((await lines.next()).value)];
    expect(processesBelow(process.pid)).toEqual(expect.arrayContaining(pids));
    expect(processesBelow(pids[0] ?? 0)).toEqual([pids[1]]);
    expect(cpuSeconds(pids[1] ?? 0)).toBeGreaterThanOrEqual(0.2);
    expect(treeCpuSeconds(pids[0] ?? 0)).toBeGreaterThanOrEqual(0.4);
    const closed = once(parent.stdout, 'close');
    parent.stdin.end();
    await closed;
  });

  it('of a process that is gone is empty and has used nothing', () => {
    const { pid } = spawnSync(process.execPath, ['-e', '']);
    expect(processesBelow(pid)).toEqual([]);
    expect(treeCpuSeconds(pid)).toBe(0);
  });
});
