import { setTimeout as delay } from 'node:timers/promises';
import type { Faults } from '@muser/testing';
import type { Happening, LinkFault, Phase, ProcessFault } from './cells.js';
import type { Point } from './phases.js';
import type { Role, System } from './system.js';

const DELAY_MS = 60;
const BYTES_PER_SECOND = 6_000_000;
/** Short of every limit. */
const BRIEF_MS = 400;
/** A little behind where the transfer stands, within what comes next. */
const AHEAD_BYTES = 10;
const FEW_BYTES = 20;
const MANY_BYTES = 20_000;
const CHUNKS: ReadonlySet<Phase> = new Set<Phase>(['first chunk', 'middle chunk', 'last chunk']);

/** Does it to a transfer that stands still, and lets the transfer go on. @returns what undoes it when the answer is there */
export async function happen(happening: Happening, point: Point, system: System): Promise<() => Promise<void>> {
  if (happening.kind === 'link') return breakLink(happening.fault, point);
  return hitProcess(happening.fault, happening.role, point, system);
}

async function breakLink(fault: LinkFault, { connection, direction, phase }: Point): Promise<() => Promise<void>> {
  const at = direction.passed;
  const count = CHUNKS.has(phase) ? MANY_BYTES : FEW_BYTES;
  const release = (faults: Faults | null): void => direction.release(faults);
  switch (fault) {
    case 'delay':
    case 'throttle':
      release(fault === 'delay' ? { delayMs: DELAY_MS } : { bytesPerSecond: BYTES_PER_SECOND });
      break;
    case 'brief stall':
      await delay(BRIEF_MS);
      release(null);
      break;
    case 'stall':
      release({ stallAtByte: at });
      break;
    case 'half-open':
      await Promise.all([
        connection.toServer.holdAt(connection.toServer.passed),
        connection.toClient.holdAt(connection.toClient.passed),
      ]);
      return async () => connection.destroy();
    case 'drop':
      release({ drop: { at: at + AHEAD_BYTES, count } });
      break;
    case 'corrupt':
      release({ corruptByte: at + AHEAD_BYTES });
      break;
    case 'replay':
      release({ replay: { at, count } });
      break;
    case 'truncate':
      release({ halfOpenAtByte: at });
      break;
    case 'cut':
      release({ cutAtByte: at });
      break;
    case 'reset':
      release({ resetAtByte: at });
      break;
  }
  return async () => undefined;
}

async function hitProcess(
  fault: ProcessFault,
  role: Role,
  { direction }: Point,
  system: System,
): Promise<() => Promise<void>> {
  const { pid } = system.child(role);
  switch (fault) {
    case 'SIGKILL':
      await system.child(role).kill();
      // What it had not sent yet is lost with it.
      direction.release(role === 'producer' ? { cutAtByte: direction.passed } : null);
      return () => system.restart(role);
    case 'SIGSTOP':
      process.kill(pid, 'SIGSTOP');
      direction.release();
      return async () => void process.kill(pid, 'SIGCONT');
    case 'brief SIGSTOP':
      process.kill(pid, 'SIGSTOP');
      direction.release();
      await delay(BRIEF_MS);
      process.kill(pid, 'SIGCONT');
      return async () => undefined;
  }
}
