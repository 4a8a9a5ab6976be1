import { connect, type ConnectionOptions, type TLSSocket } from 'node:tls';

export interface RawHttp2Options {
  port: number;
  /** Of the server's authority. */
  ca: string;
  /** Without one the server must refuse the connection. */
  identity?: { tlsKeyPem: string; tlsCertificatePem: string };
  /** Leaves what the server sends in the kernel, so that the server's answers pile up there and in the server. */
  deaf?: boolean;
}

const PREFACE = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n';
const CLIENT_STREAM_STEP = 2;
const PROBE_INTERVAL_MS = 100;

/** Types of frames, RFC 9113 section 6. */
export const FrameType = {
  data: 0x0,
  headers: 0x1,
  priority: 0x2,
  rstStream: 0x3,
  settings: 0x4,
  ping: 0x6,
  windowUpdate: 0x8,
  continuation: 0x9,
  unknown: 0xfa,
} as const;

export const Flag = { endStream: 0x1, endHeaders: 0x4 } as const;

export function frame(type: number, flags: number, stream: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** HPACK without a table and without Huffman coding: every field as it is. */
export function headerBlock(fields: readonly (readonly [string, string])[]): Buffer {
  return Buffer.concat(fields.flatMap(([name, value]) => [Buffer.from([0]), text(name), text(value)]));
}

/** What begins a gRPC call. */
export const callHeaders = (path: string): [string, string][] => [
  [':method', 'POST'],
  [':scheme', 'http'],
  [':path', path],
  [':authority', 'muser.internal'],
  ['te', 'trailers'],
  ['content-type', 'application/grpc'],
];

function text(value: string): Buffer {
  const bytes = Buffer.from(value, 'latin1');
  return Buffer.concat([prefixedInteger(bytes.length), bytes]);
}

/** RFC 7541 section 5.1, with a prefix of seven bits. */
function prefixedInteger(value: number): Buffer {
  if (value < 0x7f) return Buffer.from([value]);
  const bytes = [0x7f];
  let rest = value - 0x7f;
  for (; rest >= 0x80; rest >>>= 7) bytes.push((rest & 0x7f) | 0x80);
  return Buffer.from([...bytes, rest]);
}

/** A peer that speaks HTTP/2 frame by frame and keeps to no rule: what a program of an attacker would be. */
export class RawHttp2 {
  readonly closed: Promise<void>;
  readonly #socket: TLSSocket;
  #nextStream = 1;
  #open = true;
  receivedBytes = 0;

  /** Resolves when the client's side of the handshake is done and the preface is on its way. */
  static connect(options: RawHttp2Options): Promise<RawHttp2> {
    const { port, ca, identity, deaf = false } = options;
    const own: ConnectionOptions =
      identity === undefined ? {} : { key: identity.tlsKeyPem, cert: identity.tlsCertificatePem };
    const socket = connect({
      ...{ port, host: '127.0.0.1', ca, minVersion: 'TLSv1.3', ALPNProtocols: ['h2'] },
      ...own,
      checkServerIdentity: () => undefined,
    });
    const client = new RawHttp2(socket);
    return new Promise((resolve) => {
      socket.once('secureConnect', () => {
        if (deaf) socket.pause();
        else socket.on('data', (bytes: Buffer) => (client.receivedBytes += bytes.length));
        socket.write(Buffer.concat([Buffer.from(PREFACE), frame(FrameType.settings, 0, 0)]));
        resolve(client);
      });
      socket.once('close', () => resolve(client));
    });
  }

  private constructor(socket: TLSSocket) {
    this.#socket = socket;
    socket.on('error', () => undefined);
    // Node does not always say that a connection has ended which has data to write (see dead-socket.ts of the transport).
    const probe = setInterval(() => {
      if (isDead(socket)) socket.destroy();
    }, PROBE_INTERVAL_MS);
    this.closed = new Promise((resolve) => {
      socket.once('close', () => {
        clearInterval(probe);
        this.#open = false;
        resolve();
      });
    });
  }

  /** Neither side has ended the connection, as far as this side can know. */
  get open(): boolean {
    return this.#open;
  }

  /** Takes a stream's number; the call's HEADERS frame has to be sent with it. */
  nextStream(): number {
    const stream = this.#nextStream;
    this.#nextStream += CLIENT_STREAM_STEP;
    return stream;
  }

  /** Resolves when the kernel has taken the bytes, or the connection has ended. */
  async send(bytes: Buffer): Promise<void> {
    if (!this.#open || this.#socket.write(bytes)) return;
    await Promise.race([new Promise<void>((resolve) => this.#socket.once('drain', () => resolve())), this.closed]);
  }

  /** Opens a call that has not sent its request yet. @returns the stream */
  async openCall(path: string): Promise<number> {
    const stream = this.nextStream();
    await this.send(frame(FrameType.headers, Flag.endHeaders, stream, headerBlock(callHeaders(path))));
    return stream;
  }

  /** Sends the same bytes, or what the function makes, until the server ends the connection. @returns how many bytes */
  async flood(next: Buffer | (() => Buffer), limitBytes: number): Promise<number> {
    let sent = 0;
    while (this.#open && sent < limitBytes) {
      const bytes = Buffer.isBuffer(next) ? next : next();
      await this.send(bytes);
      sent += bytes.length;
    }
    return sent;
  }

  destroy(): void {
    this.#socket.destroy();
  }
}

/** The kernel has ended the connection. */
function isDead(socket: TLSSocket): boolean {
  const { _handle: handle } = socket as unknown as { _handle?: { getpeername?: (out: object) => number } | null };
  return !socket.connecting && (handle?.getpeername?.({}) ?? 0) !== 0;
}
