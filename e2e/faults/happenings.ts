import { setTimeout as delay } from 'node:timers/promises';
import type { Faults } from '@muser/testing';
import type { Cell, Happening, LinkFault, LinkName, Phase } from './cells.js';
import type { Link } from './network.js';
import type { Point } from './phases.js';
import { hitProcess, untilUnlisted } from './process-faults.js';
import type { System } from './system.js';
import { until } from './until.js';

export type Undo = () => Promise<void>;

const DELAY_MS = 60;
const BYTES_PER_SECOND = 6_000_000;
/** Short of every limit. */
export const BRIEF_MS = 400;
/** A little behind where the transfer stands, within what comes next. */
const AHEAD_BYTES = 10;
const FEW_BYTES = 20;
const MANY_BYTES = 20_000;

const DAMAGES: ReadonlySet<LinkFault> = new Set<LinkFault>(['drop', 'corrupt', 'replay']);

interface Damage {
  /** From where the connection stands. */
  readonly ahead: number;
  readonly count: number;
}

const FEW: Damage = { ahead: AHEAD_BYTES, count: FEW_BYTES };

/** Bytes that are dropped, changed or repeated; they have to be there. */
function damageIn(phase: Phase): Damage {
  switch (phase) {
    case 'first chunk':
    case 'middle chunk':
    case 'last chunk':
      return { ahead: AHEAD_BYTES, count: MANY_BYTES };
    case 'end':
      return { ahead: 0, count: 1 };
    default:
      return FEW;
  }
}

/** Does it to a transfer that stands still, and lets the transfer go on. @returns what undoes it when the answer is there */
export async function happen({ happening, phase }: Cell, point: Point, system: System): Promise<Undo> {
  if (happening.kind === 'process') {
    const undo = await hitProcess(happening.fault, happening.target, system, () => letGo(happening, point));
    return undo;
  }
  if (happening.link === 'decoder - producer') {
    return breakLink(happening.fault, point, system.toProducer, system.child('decoder').pid, damageIn(phase));
  }
  const { link, owner, point: aside } = besides(happening.link, system);
  const undo = await breakLink(happening.fault, aside, link, owner, FEW);
  if (happening.fault === 'link down' && happening.link === 'coordinator - producer') await untilUnlisted(system);
  point.direction.release();
  return async () => {
    if (DAMAGES.has(happening.fault)) {
      // Bytes come every second or so on such a connection; until then nothing has happened to them.
      await until('the damaged connection is replaced', () => link.connectionOf(owner) !== aside.connection);
    }
    await undo();
  };
}

/** What a process that is killed had not sent yet is lost with it; otherwise the transfer goes on. */
function letGo({ fault, target }: Happening & { kind: 'process' }, { direction }: Point): void {
  const isLost = fault === 'SIGKILL' && target === 'producer';
  direction.release(isLost ? { cutAtByte: direction.passed } : null);
}

/** The connection that one process has to another beside the transfer; what the listener sends is held. */
function besides(
  name: Exclude<LinkName, 'decoder - producer'>,
  system: System,
): { link: Link; owner: number; point: Point } {
  const isDecoder = name === 'decoder - coordinator';
  const link = isDecoder ? system.toCoordinator : system.toProducer;
  const owner = system.child(isDecoder ? 'decoder' : 'coordinator').pid;
  const connection = link.connectionOf(owner);
  if (connection === null) throw new Error(`there is no connection ${name}`);
  return { link, owner, point: { connection, direction: connection.toClient } };
}

/** @param owner the process that dials on this link */
async function breakLink(
  fault: LinkFault,
  { connection, direction }: Point,
  link: Link,
  owner: number,
  { ahead, count }: Damage,
): Promise<Undo> {
  const at = direction.passed;
  const release = (faults: Faults | null): void => direction.release(faults);
  const nothing: Undo = async () => undefined;
  switch (fault) {
    case 'delay':
      release({ delayMs: DELAY_MS });
      return nothing;
    case 'throttle':
      release({ bytesPerSecond: BYTES_PER_SECOND });
      return nothing;
    case 'brief stall':
      await delay(BRIEF_MS);
      release(null);
      return nothing;
    case 'stall':
      release({ stallAtByte: at });
      return nothing;
    case 'half-open':
      for (const side of [connection.toServer, connection.toClient]) void side.holdAt(side.passed);
      return async () => connection.destroy();
    case 'drop':
      release({ drop: { at: at + ahead, count } });
      return nothing;
    case 'corrupt':
      release({ corruptByte: at + ahead });
      return nothing;
    case 'replay':
      release({ replay: { at, count } });
      return nothing;
    case 'truncate':
      release({ halfOpenAtByte: at });
      return nothing;
    case 'cut':
      release({ cutAtByte: at });
      return nothing;
    case 'reset':
      release({ resetAtByte: at });
      return nothing;
    case 'link down':
      link.goDown(owner);
      return nothing;
  }
}
