// Groups of real processes, also one that SIGKILL does not end.
import { spawn } from 'node:child_process';

import { afterEach, describe, expect, it } from 'vitest';

import { groupLives, killGroup, StuckGroupError } from '../src/bridge/process-group.js';
import { canFreeze, freeze } from './support/freezer.js';

let thaw: () => Promise<void> = () => Promise.resolve();
afterEach(() => thaw());

function sleeper(): number {
  return spawn('sleep', ['600'], { detached: true, stdio: 'ignore' }).pid ?? 0;
}

describe('a process group', () => {
  it('is gone when it has been killed', async () => {
    const leader = sleeper();
    expect(groupLives(leader)).toBe(true);
    await killGroup(leader);
    expect(groupLives(leader)).toBe(false);
  });

  it.skipIf(!canFreeze())('that outlives SIGKILL is not taken for gone', async () => {
    const leader = sleeper();
    thaw = await freeze(leader);
    await expect(killGroup(leader, 100)).rejects.toBeInstanceOf(StuckGroupError);
    await thaw();
    await killGroup(leader);
  });
});
