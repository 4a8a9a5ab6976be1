import { MAX_CLOCK_SKEW_MS, MAX_REVOKED_NODES, PROTOCOL_VERSION, type RevokedNodes } from '@muser/protocol';
import type { Clock } from '@muser/service-kit';
import type { PeerClient } from '@muser/transport';

import type { NodeDirectory } from './directory.js';
import { SILENCE_LIMIT_MS } from './watchdog.js';

/** A list that was lost (the producer was started anew, its disk was full) is mended by the next one. */
const REPEAT_MS = 3_000;

/**
 * Every node that is revoked, the latest last. Those whose certificate has ended are left out: nobody accepts it any more,
 * and their tickets ended long before.
 */
export function revokedNodes(directory: NodeDirectory, nowMs: number): RevokedNodes {
  const revoked = directory
    .list()
    .flatMap(({ record }) => (record.revokedAtMs === null ? [] : { ...record, atMs: record.revokedAtMs }))
    .sort((one, other) => one.atMs - other.atMs);
  const relevant = revoked.filter(({ certificateExpiresAtMs }) => certificateExpiresAtMs + MAX_CLOCK_SKEW_MS > nowMs);
  const nodeIds = relevant.map(({ nodeId }) => nodeId).slice(-MAX_REVOKED_NODES);
  // Revoked nodes are never forgotten here, so that their number only grows.
  return { protocolVersion: PROTOCOL_VERSION, version: revoked.length, nodeIds };
}

/**
 * Tells a producer which nodes are revoked: at once, after every revocation, and again and again. Ends only by throwing.
 *
 * @throws MuserError the signal's reason, or why the producer did not take the list
 */
export async function keepToldOfRevoked(options: {
  client: PeerClient;
  directory: NodeDirectory;
  clock: Clock;
  signal: AbortSignal;
}): Promise<never> {
  const { client, directory, clock, signal } = options;
  let pause = new AbortController();
  const wake = (): void => pause.abort();
  const unsubscribe = directory.subscribe(({ state }) => {
    if (state === 'revoked') wake();
  });
  signal.addEventListener('abort', wake);
  try {
    for (;;) {
      signal.throwIfAborted();
      pause = new AbortController();
      await client.setRevoked(revokedNodes(directory, clock.now()), { signal, idleTimeoutMs: SILENCE_LIMIT_MS });
      await clock.sleep(REPEAT_MS, pause.signal).catch(() => undefined);
    }
  } finally {
    unsubscribe();
    signal.removeEventListener('abort', wake);
  }
}
