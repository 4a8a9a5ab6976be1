import { callHeaders, Flag, frame, FrameType, headerBlock, RawHttp2, type RawHttp2Options } from './raw-http2.js';

export interface FloodOptions {
  port: number;
  ca: string;
  /** Of a call that the server offers. */
  path: string;
  /** Asked for each attacker; null for those without a certificate. */
  identity: () => Promise<RawHttp2Options['identity'] | null>;
  /** The server must have ended a connection before so much was sent on it. */
  limitBytes: number;
}

/**
 * Abuses HTTP/2 in every known way at once, each by a peer that reads the server's answers and by one that does not.
 *
 * @returns the ways that the server let go on
 */
export async function floodInEveryWay(options: FloodOptions): Promise<string[]> {
  const ways = Object.entries(FLOODS).flatMap(([name, flood]) => [
    { name, flood, deaf: false },
    { name: `${name}, deaf`, flood, deaf: true },
  ]);
  const ended = await Promise.all(
    ways.map(async ({ name, flood, deaf }) => {
      const { port, ca, path, limitBytes } = options;
      const identity = (await options.identity()) ?? undefined;
      const client = await RawHttp2.connect({ port, ca, deaf, ...(identity && { identity }) });
      const sent = await client.flood(flood(client, path), limitBytes);
      if (sent < limitBytes) await client.closed;
      client.destroy();
      return sent < limitBytes ? [] : [name];
    }),
  );
  return ended.flat();
}

/** What is sent again and again: the same bytes, or what the function makes of a connection. */
type Flood = (client: RawHttp2, path: string) => Buffer | (() => Buffer);

const STREAM = 1;
const CANCEL = Buffer.from([0, 0, 0, 8]);
/** Of a field's value: what one frame holds. */
const LONG_VALUE = 'a'.repeat(15_000);

/** By what is sent. */
const FLOODS: Readonly<Record<string, Flood>> = {
  'pings, each of which wants an answer': () => repeated(frame(FrameType.ping, 0, 0, Buffer.alloc(8)), 1000),
  'settings, each of which wants an answer': () => repeated(frame(FrameType.settings, 0, 0), 1000),
  'settings with thousands of entries': () =>
    frame(FrameType.settings, 0, 0, repeated(Buffer.from([0, 3, 0, 0, 0, 9]), 2000)),
  'priorities of streams that are not there': () =>
    repeated(frame(FrameType.priority, 0, STREAM, Buffer.from([0, 0, 0, 0, 5])), 1000),
  'windows that grow by a byte': () => repeated(frame(FrameType.windowUpdate, 0, 0, Buffer.from([0, 0, 0, 1])), 1000),
  'frames of no known type': () => repeated(frame(FrameType.unknown, 0, 0, Buffer.alloc(100)), 100),
  'calls that are reset at once': (client, path) => () => {
    const pairs = Array.from({ length: 100 }, () => {
      const stream = client.nextStream();
      return Buffer.concat([call(stream, path), frame(FrameType.rstStream, 0, stream, CANCEL)]);
    });
    return Buffer.concat(pairs);
  },
  'calls without end': (client, path) => () =>
    Buffer.concat(Array.from({ length: 100 }, () => call(client.nextStream(), path))),
  'a head without end': (client, path) => {
    const stream = client.nextStream();
    let begun = false;
    return () => {
      if (begun) return frame(FrameType.continuation, 0, stream, headerBlock([['x-long', LONG_VALUE]]));
      begun = true;
      return frame(FrameType.headers, 0, stream, headerBlock(callHeaders(path)));
    };
  },
  'heads that are too long': (client, path) => () => {
    const stream = client.nextStream();
    const rest = Array.from({ length: 6 }, (_, index) =>
      frame(FrameType.continuation, index === 5 ? Flag.endHeaders : 0, stream, headerBlock([['x-long', LONG_VALUE]])),
    );
    return Buffer.concat([frame(FrameType.headers, 0, stream, headerBlock(callHeaders(path))), ...rest]);
  },
  'heads with a thousand fields': (client, path) => () => {
    const fields = Array.from({ length: 1000 }, (_, index): [string, string] => [`x${index}`, 'y']);
    return call(client.nextStream(), path, fields);
  },
  'data without content': (client, path) => {
    const stream = client.nextStream();
    let begun = false;
    return () => {
      if (begun) return repeated(frame(FrameType.data, 0, stream), 1000);
      begun = true;
      return call(stream, path);
    };
  },
};

function call(stream: number, path: string, more: [string, string][] = []): Buffer {
  return frame(FrameType.headers, Flag.endHeaders, stream, headerBlock([...callHeaders(path), ...more]));
}

function repeated(bytes: Buffer, count: number): Buffer {
  return Buffer.concat(Array.from({ length: count }, () => bytes));
}
