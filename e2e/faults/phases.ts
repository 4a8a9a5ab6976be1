import { setTimeout as delay } from 'node:timers/promises';
import type { Direction, ProxiedConnection } from '@muser/testing';
import type { Cell, Phase } from './cells.js';
import type { System } from './system.js';
import { within } from './until.js';

/** A transfer that stands still where something is to happen to it. */
export interface Point {
  readonly connection: ProxiedConnection;
  /** The direction that is held. */
  readonly direction: Direction;
}

export interface Expected {
  /** Of the KV payload of this transfer. */
  readonly payloadBytes: number;
}

/** Within the certificates that a server sends. */
const HANDSHAKE_BYTES = 600;
/** Within the token ids of a request. */
const REQUEST_BYTES = 2_000;
/** Before the first frame of a transfer is whole. */
const BEGIN_BYTES = 30;
/** Parts of the payload; there are three chunks. */
const SHARES = { 'first chunk': 0.15, 'middle chunk': 0.5, 'last chunk': 0.85 } as const;
/** What has not come yet. Seal and the end of the stream behind it are longer than 150 bytes, the end alone is shorter. */
const BYTES_LEFT = { seal: 150, end: 1, decoding: 0 } as const;
/** When nothing has come for so long, everything has come. */
const QUIET_MS = 120;

/** The transfer needs a connection of its own, because something happens while it is made. */
function isConnecting(phase: Phase): phase is 'connect' | 'handshake' {
  return phase === 'connect' || phase === 'handshake';
}

/**
 * Arms the way to the producer before a request is made.
 *
 * @param queued resolves when the decoder has told that it waits for its turn: the proxy cannot see it
 * @returns the transfer, standing still where the cell wants it
 */
export async function stopAt(
  { phase, share }: Pick<Cell, 'phase' | 'share'>,
  system: System,
  { payloadBytes }: Expected,
  queued: () => Promise<void>,
): Promise<Point> {
  const owner = system.child('decoder').pid;
  if (isConnecting(phase)) return stopConnection(phase, owner, system);
  const connection = system.toProducer.connectionOf(owner);
  if (connection === null) throw new Error('the decoder has no connection to the producer');
  const { toServer, toClient } = connection;
  const holdClient = async (bytes: number): Promise<Point> => {
    await toClient.holdAt(toClient.passed + bytes);
    return { connection, direction: toClient };
  };
  switch (phase) {
    case 'before':
      throw new Error('nothing stands still before a request');
    case 'request':
      await toServer.holdAt(toServer.passed + REQUEST_BYTES);
      return { connection, direction: toServer };
    case 'queued':
      await queued();
      return holdClient(0);
    case 'begin':
      return holdClient(BEGIN_BYTES);
    case 'first chunk':
    case 'middle chunk':
    case 'last chunk':
      return holdClient(Math.round(payloadBytes * (share ?? SHARES[phase])));
    case 'seal':
    case 'end':
    case 'decoding':
      await holdClient(payloadBytes);
      await quiet(toClient);
      return holdClient(toClient.waiting - BYTES_LEFT[phase]);
  }
}

/** Something happens to a connection while it is made, so the transfer gets a new one. */
async function stopConnection(phase: 'connect' | 'handshake', owner: number, system: System): Promise<Point> {
  return new Promise((resolve, reject) => {
    // It may be made as soon as the old one is gone.
    system.toProducer.onNextConnection(owner, (connection) => {
      const direction = phase === 'connect' ? connection.toServer : connection.toClient;
      const at = phase === 'connect' ? 0 : HANDSHAKE_BYTES;
      void direction.holdAt(at).then(() => resolve({ connection, direction }));
    });
    system.toProducer.disconnect(owner).catch(reject);
  });
}

/** All that the producer sends for this transfer has come. */
async function quiet(direction: Direction): Promise<void> {
  const came = (async () => {
    let before = -1;
    while (direction.waiting === 0 || direction.waiting !== before) {
      before = direction.waiting;
      await delay(QUIET_MS);
    }
  })();
  await within('the producer sends the end of the transfer', came);
}
