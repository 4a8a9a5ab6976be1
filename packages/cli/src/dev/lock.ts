import { setTimeout as delay } from 'node:timers/promises';
import { ServiceError, isProcessRunning, lockFolder, type FolderLock } from '@muser/service-kit';
import { CliError, EXIT } from '../exit.js';
import { createStateFolders, readEndpoints, type StateLayout } from '../state.js';
import type { StatusOutput } from '../terminal.js';

const PREVIOUS_LIMIT_MS = 15_000;
const POLL_MS = 50;

/** Takes the state folder for one `muser dev`; a second one is told which process has it. */
export async function lockState(layout: StateLayout): Promise<FolderLock> {
  await createStateFolders(layout);
  try {
    return await lockFolder(layout.root);
  } catch (error) {
    if (!(error instanceof ServiceError) || error.code !== 'STATE_LOCKED') throw error;
    throw new CliError(EXIT.failed, 'STATE_LOCKED', error.message, {
      advice: 'Ask that one (`muser ask --state …`), or choose another folder with --state.',
      cause: error,
    });
  }
}

/**
 * After a `muser dev` that was killed, its processes may still be closing: they end by themselves because their standard
 * input ended. Waits for them, so that they do not hold what the new ones need.
 */
export async function waitForPrevious(layout: StateLayout, output: StatusOutput, signal: AbortSignal): Promise<void> {
  const endpoints = await readEndpoints(layout).catch(() => null);
  if (endpoints === null) return;
  const deadline = performance.now() + PREVIOUS_LIMIT_MS;
  let told = false;
  const pids = Object.values(endpoints.pids);
  const anyRuns = async (): Promise<boolean> => (await Promise.all(pids.map(isProcessRunning))).includes(true);
  while (performance.now() < deadline && (await anyRuns())) {
    if (!told) output.line('waiting for the processes of the previous run to end');
    told = true;
    await delay(POLL_MS, undefined, { signal });
  }
}
