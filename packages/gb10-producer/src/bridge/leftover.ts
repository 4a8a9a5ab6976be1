import { readFile } from 'node:fs/promises';

import { type Logger, readSmallFile, writeFileAtomic } from '@muser/service-kit';
import { z } from 'zod';

import { groupLives, killGroup, startTimeOf } from './process-group.js';

const MAX_RECORD_BYTES = 4_096;
const recordSchema = z.object({ boot: z.string(), pid: z.number().int().min(2), startTime: z.number() });

/** Writes down which worker runs, for a producer that is started after this one was killed. */
export async function recordWorker(file: string, pid: number): Promise<void> {
  const record = { boot: await bootId(), pid, startTime: startTimeOf(pid) ?? 0 };
  await writeFileAtomic(file, `${JSON.stringify(record)}\n`);
}

/**
 * Ends the worker of a producer that was killed. It ends by itself, but a little later, and not at all when it hangs; two
 * of them have no room in the memory of a GB10.
 * @throws StuckGroupError when it cannot be killed
 */
export async function endLeftover(file: string, logger: Logger): Promise<void> {
  const record = recordSchema.safeParse(await readJson(file));
  if (!record.success) return;
  const { boot, pid, startTime } = record.data;
  const now = startTimeOf(pid);
  // While any process of a group lives its number is not given away, so without a leader it is the same group. Where the
  // kernel tells nothing, the number may be anybody's by now.
  const isOurs = boot !== '' && boot === (await bootId()) && (now === null || now === startTime);
  if (!isOurs || !groupLives(pid)) return;
  logger.warn({ workerPid: pid }, 'a vLLM worker of an earlier producer is still there; it is ended first');
  await killGroup(pid);
}

/** null when there is none, or when it is damaged: then nothing is known about an earlier worker. */
async function readJson(file: string): Promise<unknown> {
  try {
    return JSON.parse((await readSmallFile(file, MAX_RECORD_BYTES)) ?? '');
  } catch {
    return null;
  }
}

/** Process ids begin anew at each boot. Empty where the kernel does not tell. */
async function bootId(): Promise<string> {
  return readFile('/proc/sys/kernel/random/boot_id', 'utf8').then(
    (id) => id.trim(),
    () => '',
  );
}
