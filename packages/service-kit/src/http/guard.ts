import type { IncomingHttpHeaders } from 'node:http';
import { isIPv4 } from 'node:net';

/** True for a name or address that can only mean this machine. */
export function isLoopbackHost(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'));
}

/**
 * Why a request is refused, or null. A web page that the user opened can make the browser send requests to loopback,
 * and by DNS rebinding even under a name of its own; such requests carry that name in Host, or the page in Origin or
 * in Sec-Fetch-Site. Programs send a loopback Host and neither of the others.
 */
export function refusalOf(headers: IncomingHttpHeaders, boundPort: number): string | null {
  if (!isOurAuthority(headers.host, boundPort)) return 'the Host header does not name this server on loopback';
  const { origin } = headers;
  if (origin !== undefined && !isOurOrigin(origin, boundPort)) return 'the Origin header names a foreign page';
  const site = headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') return 'the request comes from a foreign page';
  return null;
}

function isOurOrigin(origin: string, boundPort: number): boolean {
  const scheme = 'http://';
  return origin.startsWith(scheme) && isOurAuthority(origin.slice(scheme.length), boundPort);
}

/** `authority` is `name:port`, with an IPv6 address in brackets; the port may be absent only when it is HTTP's own. */
function isOurAuthority(authority: string | undefined, boundPort: number): boolean {
  const match = /^(?:\[([0-9a-f:]+)\]|([^[\]:]+))(?::(\d{1,5}))?$/i.exec(authority ?? '');
  if (match === null) return false;
  const host = (match[1] ?? match[2] ?? '').toLowerCase();
  const port = match[3] === undefined ? 80 : Number(match[3]);
  return port === boundPort && isLoopbackHost(host);
}
