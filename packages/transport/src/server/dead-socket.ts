import type { TLSSocket } from 'node:tls';

/** libuv's handle under a socket; not public API, hence optional in every part. */
interface WithHandle {
  _handle?: { getpeername?: (out: object) => number } | null;
}

/**
 * Whether the kernel has ended the connection (reset, or a timeout of TCP itself).
 *
 * Node does not say so while an HTTP/2 session over TLS has data to write: TLSWrap::OnStreamAfterWrite keeps its write marked
 * as in progress when it fails, the session takes the failed write for done, starts the next one, which never runs, and stops
 * reading until it has (seen with 20.20). Without this check a producer would go on computing for a decoder that has died
 * until the keepalive ends the connection, a minute later. A socket that has no peer any more is dead.
 */
export function isDead(socket: TLSSocket): boolean {
  const { _handle: handle } = socket as unknown as WithHandle;
  const status = handle?.getpeername?.({});
  return status !== undefined && status !== 0;
}
