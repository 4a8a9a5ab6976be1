import { isIP } from 'node:net';
import type http from 'node:http';
import { CliError, EXIT, usageError } from '../../exit.js';
import { openRequest } from '../../http.js';

const MAX_REDIRECTS = 5;
const PUBLIC_HUB = 'https://huggingface.co';

/** A web address that files are fetched from. The token goes to its host alone. */
export interface WebSource {
  base: URL;
  token: string | null;
}

/** MUSER_HUB_URL, else the public hub, with the token of MUSER_HUB_TOKEN. */
export function hubSource(env: NodeJS.ProcessEnv): WebSource {
  const token = env['MUSER_HUB_TOKEN'] ?? '';
  const base = parseBase(env['MUSER_HUB_URL'] || PUBLIC_HUB);
  if (token !== '' && !isPrivate(base)) {
    throw usageError('MUSER_HUB_TOKEN is not sent over plain http', 'Use an https:// address in MUSER_HUB_URL.');
  }
  if (/[^\x21-\x7e]/.test(token)) throw usageError('MUSER_HUB_TOKEN has a character that no token has');
  return { base, token: token === '' ? null : token };
}

/** A mirror: any server that has the files under their paths. It never gets the token. */
export function mirrorSource(url: string): WebSource {
  return { base: parseBase(url), token: null };
}

/** Address of a path below the base; every segment is encoded, so none can leave it. */
export function urlBelow(base: URL, path: string): URL {
  const url = new URL(base);
  url.pathname = `${base.pathname.replace(/\/$/, '')}/${path.split('/').map(encodeURIComponent).join('/')}`;
  return url;
}

/** The server answered, and not with the file. */
export class HttpStatusError extends Error {
  override readonly name = 'HttpStatusError';
  constructor(
    readonly status: number,
    readonly retryAfterMs: number | null,
    host: string,
  ) {
    super(`${host} answered ${status}`);
  }
}

/**
 * GET with redirects, which may lead to https addresses, or stay on the host they came from; the token is sent to the
 * source's own host only. Resolves with a 200 or 206, whose body the caller must read or destroy.
 *
 * @throws HttpStatusError for any other status; CliError for a redirect that is refused.
 */
export async function openWeb(
  source: WebSource,
  url: URL,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<http.IncomingMessage> {
  let at = url;
  for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects += 1) {
    const authorization: Record<string, string> =
      source.token !== null && at.origin === source.base.origin ? { authorization: `Bearer ${source.token}` } : {};
    const response = await openRequest({
      method: 'GET',
      url: at,
      headers: { accept: '*/*', 'accept-encoding': 'identity', 'user-agent': 'muser', ...headers, ...authorization },
      signal,
    });
    const status = response.statusCode ?? 0;
    if (status === 200 || status === 206) return response;
    const { location, 'retry-after': retryAfter } = response.headers;
    response.destroy();
    if (![301, 302, 303, 307, 308].includes(status) || location === undefined) {
      throw new HttpStatusError(status, parseRetryAfter(retryAfter), at.host);
    }
    at = redirectTarget(at, location);
  }
  throw refused(`${url.host} redirects more than ${MAX_REDIRECTS} times`);
}

function redirectTarget(from: URL, location: string): URL {
  if (!URL.canParse(location, from.href)) throw refused(`${from.host} redirects to an address that is none`);
  const to = new URL(location, from.href);
  const sameHost = to.origin === from.origin;
  if (to.protocol === 'https:' || sameHost) return to;
  throw refused(`${from.host} redirects to ${to.protocol}//${to.host}: only https is followed to another host`);
}

/** Seconds only; the form with a date is rare and falls back to our own waiting time. At most a minute. */
function parseRetryAfter(value: string | undefined): number | null {
  return value !== undefined && /^\d{1,6}$/.test(value) ? Math.min(Number(value), 60) * 1000 : null;
}

function parseBase(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !['http:', 'https:'].includes(url.protocol)) throw usageError(`"${text}" is no http(s) address`);
  if (url.username !== '' || url.password !== '') throw usageError('the address of a source must not hold a password');
  url.search = '';
  url.hash = '';
  return url;
}

/** Whether nobody on the way can read or change what is sent: https, or this machine. */
export function isPrivate(url: URL): boolean {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  return url.protocol === 'https:' || host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}

function refused(message: string): CliError {
  return new CliError(EXIT.failed, 'PERMISSION_DENIED', message);
}
