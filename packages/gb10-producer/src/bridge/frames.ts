import { MuserError } from '@muser/protocol';

import {
  BRIDGE_LIMITS,
  BRIDGE_VERSION,
  checkFields,
  type Frame,
  FrameError,
  type FrameKind,
  isObject,
  kindAt,
  type KindSpec,
  kindNamed,
  type Link,
  type Side,
} from './schema.js';

const PREFIX_BYTES = 4;
/** u8 version, u8 kind, u16 reserved, u32 header length. */
const HEAD_BYTES = 8;
const NO_PAYLOAD = new Uint8Array(0);

/**
 * A whole frame.
 * @throws FrameError when a field or a length does not fit the schema
 */
export function encodeFrame(name: FrameKind, header: object, payload: Uint8Array = NO_PAYLOAD): Buffer {
  const kind = kindNamed(name);
  const fields = header as Readonly<Record<string, unknown>>;
  checkFields(kind.fields, fields, name);
  checkPayload(kind, payload.length);
  // In the schema's order, so that both languages write the same bytes.
  const ordered = Object.keys(kind.fields).flatMap((key) => (Object.hasOwn(fields, key) ? [[key, fields[key]]] : []));
  const text = Buffer.from(JSON.stringify(Object.fromEntries(ordered)));
  if (text.length > BRIDGE_LIMITS.headerBytes) throw headerTooLarge(name, text.length);
  const length = HEAD_BYTES + text.length + payload.length;
  if (length > BRIDGE_LIMITS.frameBytes) throw frameTooLarge(length);
  const frame = Buffer.allocUnsafe(PREFIX_BYTES + length);
  let at = frame.writeUInt32LE(length, 0);
  at = frame.writeUInt8(BRIDGE_VERSION, at);
  at = frame.writeUInt8(kind.index, at);
  at = frame.writeUInt16LE(0, at);
  at = frame.writeUInt32LE(text.length, at);
  at += text.copy(frame, at);
  frame.set(payload, at);
  return frame;
}

/**
 * Cuts a stream of bytes into frames. It keeps what has come, never more than one frame, and allocates nothing for a length
 * that was only announced. After an error it is of no use any more.
 */
export class FrameDecoder {
  readonly #link: Link;
  readonly #from: Side;
  readonly #blocks: Buffer[] = [];
  #length = 0;
  /** Bytes of the frame that comes, its prefix included; null while the prefix has not come. */
  #frameBytes: number | null = null;

  /** @param from the side that sends */
  constructor(link: Link, from: Side) {
    this.#link = link;
    this.#from = from;
  }

  /**
   * The frames that are complete with this block. A payload is views of the blocks: copy what is to be kept.
   * @throws FrameError
   */
  *push(block: Buffer): Generator<Frame, void, undefined> {
    if (block.length > 0) this.#blocks.push(block);
    this.#length += block.length;
    for (;;) {
      if (this.#frameBytes === null) {
        if (this.#length < PREFIX_BYTES) return;
        this.#frameBytes = PREFIX_BYTES + bodyLength(firstBytes(this.#blocks, PREFIX_BYTES));
      }
      if (this.#length < this.#frameBytes) return;
      const frame = this.#take(this.#frameBytes);
      this.#frameBytes = null;
      yield decodeBody(behind(frame, PREFIX_BYTES), this.#link, this.#from);
    }
  }

  /** Whether the stream may end here. */
  get empty(): boolean {
    return this.#length === 0;
  }

  #take(count: number): Buffer[] {
    const taken: Buffer[] = [];
    let left = count;
    while (left > 0) {
      const block = this.#blocks.shift();
      if (block === undefined) throw new MuserError('INTERNAL', `${left} bytes of a frame are missing`);
      taken.push(block.subarray(0, left));
      if (block.length > left) this.#blocks.unshift(block.subarray(left));
      left -= Math.min(left, block.length);
    }
    this.#length -= count;
    return taken;
  }
}

/** `count` bytes, or more, in one piece. The blocks have that many. */
function firstBytes(blocks: readonly Buffer[], count: number): Buffer {
  const [first] = blocks;
  // Joined only where a border of blocks is in the way.
  return first !== undefined && first.length >= count ? first : Buffer.concat(blocks, count);
}

/** The blocks without their first `count` bytes. */
function behind(blocks: readonly Buffer[], count: number): Buffer[] {
  let left = count;
  return blocks.flatMap((block) => {
    const skipped = Math.min(left, block.length);
    left -= skipped;
    return skipped === block.length ? [] : [block.subarray(skipped)];
  });
}

function bodyLength(prefix: Buffer): number {
  const length = prefix.readUInt32LE(0);
  if (length > BRIDGE_LIMITS.frameBytes) throw frameTooLarge(length);
  if (length < HEAD_BYTES) throw new FrameError('FRAME_TRUNCATED', `frame of ${length} bytes has no room for its head`);
  return length;
}

function decodeBody(body: readonly Buffer[], link: Link, from: Side): Frame {
  const length = body.reduce((sum, block) => sum + block.length, 0);
  const head = firstBytes(body, HEAD_BYTES);
  const version = head.readUInt8(0);
  const reserved = head.readUInt16LE(2);
  if (version !== BRIDGE_VERSION || reserved !== 0) {
    throw new FrameError('VERSION_UNKNOWN', `frame of version ${version}, reserved ${reserved}`);
  }
  const kind = kindAt(head.readUInt8(1));
  const headerBytes = head.readUInt32LE(4);
  if (headerBytes > BRIDGE_LIMITS.headerBytes) throw headerTooLarge(kind.name, headerBytes);
  const payloadAt = HEAD_BYTES + headerBytes;
  if (payloadAt > length) {
    throw new FrameError('FRAME_TRUNCATED', `${kind.name}: header of ${headerBytes} bytes in ${length}`);
  }
  if (!kind.links.includes(link) || kind.from !== from) {
    throw new FrameError('KIND_UNEXPECTED', `${kind.name} on the ${link} link from the ${from}`);
  }
  const header = parseHeader(firstBytes(body, payloadAt).subarray(HEAD_BYTES, payloadAt), kind.name);
  checkFields(kind.fields, header, kind.name);
  checkPayload(kind, length - payloadAt);
  const payload = { length: length - payloadAt, pieces: behind(body, payloadAt) };
  // checkFields has established the type that the kind's header has.
  return { kind: kind.name, header, payload } as unknown as Frame;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function parseHeader(bytes: Buffer, where: string): Record<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(utf8.decode(bytes));
  } catch {
    // The parser's message would quote the header.
    header = null;
  }
  if (isObject(header)) return header;
  throw new FrameError('HEADER_INVALID', `${where}: the header is no JSON object in UTF-8`);
}

function checkPayload({ name, payload }: KindSpec, length: number): void {
  if (length > BRIDGE_LIMITS.payloadBytes) {
    throw new FrameError('PAYLOAD_INVALID', `${name}: ${length} bytes, allowed are ${BRIDGE_LIMITS.payloadBytes}`);
  }
  if ((payload === 'none') !== (length === 0)) {
    throw new FrameError('PAYLOAD_INVALID', `${name}: ${length} bytes where there is ${payload}`);
  }
  if (payload === 'tokens' && length % 4 !== 0) {
    throw new FrameError('PAYLOAD_INVALID', `${name}: ${length} bytes are no list of u32`);
  }
}

function headerTooLarge(name: string, length: number): FrameError {
  return new FrameError(
    'HEADER_TOO_LARGE',
    `${name}: header of ${length} bytes, allowed are ${BRIDGE_LIMITS.headerBytes}`,
  );
}

function frameTooLarge(length: number): FrameError {
  return new FrameError('FRAME_TOO_LARGE', `frame of ${length} bytes, allowed are ${BRIDGE_LIMITS.frameBytes}`);
}
