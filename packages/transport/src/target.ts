import { isIPv4, isIPv6 } from 'node:net';
import { MuserError } from '@muser/protocol';

export interface HostAndPort {
  /** Without brackets. */
  host: string;
  port: number;
}

const HOST_NAME = /^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?$/;

/**
 * Splits "host:port"; an IPv6 address stands in brackets.
 *
 * @throws MuserError INVALID_REQUEST
 */
export function parseTarget(target: string): HostAndPort {
  const match = /^(?:\[([^\]]{2,64})\]|([^:[\]]{1,253})):(\d{1,5})$/.exec(target);
  const port = Number(match?.[3]);
  const address = match?.[1];
  const name = match?.[2];
  if (match !== null && port >= 1 && port <= 65_535) {
    if (address !== undefined && isIPv6(address)) return { host: address, port };
    if (name !== undefined && (isIPv4(name) || HOST_NAME.test(name))) return { host: name, port };
  }
  throw new MuserError(
    'INVALID_REQUEST',
    `${JSON.stringify(target.slice(0, 300))} is not an address: host:port, IPv6 as [::1]:port`,
  );
}

/** The inverse of parseTarget. */
export function formatTarget({ host, port }: HostAndPort): string {
  return isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`;
}

/** The same target with the resolver named, so that grpc-js never guesses (or reads a path or another scheme in it). */
export function grpcTarget(target: string): string {
  const { host, port } = parseTarget(target);
  if (isIPv6(host)) return `ipv6:[${host}]:${port}`;
  return isIPv4(host) ? `ipv4:${host}:${port}` : `dns:${host}:${port}`;
}
