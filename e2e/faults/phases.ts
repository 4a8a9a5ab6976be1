import { setTimeout as delay } from 'node:timers/promises';
import type { Direction, ProxiedConnection } from '@muser/testing';
import type { Phase } from './cells.js';
import type { System } from './system.js';
import { within } from './until.js';

/** A transfer that stands still where something is to happen to it. */
export interface Point {
  readonly connection: ProxiedConnection;
  /** The direction that is held. */
  readonly direction: Direction;
  readonly phase: Phase;
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
/** Seal and the end of the stream behind it are longer than this, the end alone is shorter. */
const SEAL_BYTES = 150;
/** When nothing has come for so long, everything has come. */
const QUIET_MS = 120;

/** The transfer needs a connection of its own, because something happens while it is made. */
function needsConnection(phase: Phase): phase is 'connect' | 'handshake' {
  return phase === 'connect' || phase === 'handshake';
}

/**
 * Arms the way to the producer before a request is made.
 *
 * @param happened resolves when the decoder has told of this phase: the proxy cannot see it
 * @returns the transfer, standing still in that phase
 */
export async function stopAt(
  phase: Phase,
  system: System,
  { payloadBytes }: Expected,
  happened: (what: 'queued' | 'decode') => Promise<void>,
): Promise<Point> {
  const owner = system.child('decoder').pid;
  if (needsConnection(phase)) {
    await system.toProducer.disconnect(owner);
    return new Promise((resolve) => {
      system.toProducer.onNextConnection(owner, (connection) => {
        const direction = phase === 'connect' ? connection.toServer : connection.toClient;
        void direction
          .holdAt(phase === 'connect' ? 0 : HANDSHAKE_BYTES)
          .then(() => resolve({ connection, direction, phase }));
      });
    });
  }
  const connection = system.toProducer.connectionOf(owner);
  if (connection === null) throw new Error('the decoder has no connection to the producer');
  const { toServer, toClient } = connection;
  const point = (direction: Direction): Point => ({ connection, direction, phase });
  switch (phase) {
    case 'request':
      await toServer.holdAt(toServer.passed + REQUEST_BYTES);
      return point(toServer);
    case 'queued':
    case 'decoding':
      await happened(phase === 'queued' ? 'queued' : 'decode');
      await toClient.holdAt(toClient.passed);
      return point(toClient);
    case 'begin':
      await toClient.holdAt(toClient.passed + BEGIN_BYTES);
      return point(toClient);
    case 'first chunk':
    case 'middle chunk':
    case 'last chunk':
      await toClient.holdAt(toClient.passed + Math.round(payloadBytes * SHARES[phase]));
      return point(toClient);
    case 'seal':
    case 'end':
      await toClient.holdAt(toClient.passed + payloadBytes);
      await quiet(toClient);
      await toClient.holdAt(toClient.passed + toClient.waiting - (phase === 'seal' ? SEAL_BYTES : 1));
      return point(toClient);
  }
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
