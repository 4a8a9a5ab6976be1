import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SseParser, type SseEvent } from '../src/sse.js';

function parse(chunks: readonly Uint8Array[]): SseEvent[] {
  const parser = new SseParser();
  return chunks.flatMap((chunk) => parser.push(chunk));
}

function split(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const at = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...at].map((from, index) => bytes.subarray(from, at[index] ?? bytes.length));
}

const line = fc.string({ unit: fc.constantFrom('a', ' ', ':', 'é', '漢', '🎼', '{', '"'), maxLength: 12 });
const lineEnd = fc.constantFrom('\n', '\r\n', '\r');
const event = fc.record({
  name: fc.constantFrom('', 'muser.progress'),
  lines: fc.array(line, { minLength: 1, maxLength: 3 }),
  comment: fc.boolean(),
  end: lineEnd,
});

describe('SseParser', () => {
  it('finds the same events wherever the bytes are cut', () => {
    fc.assert(
      fc.property(fc.array(event, { maxLength: 6 }), fc.array(fc.nat(), { maxLength: 40 }), (events, cuts) => {
        const text = events
          .map(({ name, lines, comment, end }) =>
            [
              ...(comment ? [`: keep-alive${end}`] : []),
              ...(name === '' ? [] : [`event: ${name}${end}`]),
              ...lines.map((value) => `data: ${value}${end}`),
              end,
            ].join(''),
          )
          .join('');
        const expected = events.map(({ name, lines }) => ({ event: name || 'message', data: lines.join('\n') }));
        expect(parse(split(new TextEncoder().encode(text), cuts))).toEqual(expected);
      }),
      { numRuns: 500 },
    );
  });

  it('finds them when every byte comes alone', () => {
    const bytes = new TextEncoder().encode('data: {"a":"漢🎼"}\r\n\r\nevent: x\rdata:1\rdata: 2\r\r');
    expect(parse([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual([
      { event: 'message', data: '{"a":"漢🎼"}' },
      { event: 'x', data: '1\n2' },
    ]);
  });

  it('takes an event that has not ended for none', () => {
    expect(parse([new TextEncoder().encode('data: 1\n\ndata: 2\n')])).toEqual([{ event: 'message', data: '1' }]);
  });

  it('ignores comments, ids, retry times and empty events', () => {
    const text = ': hello\n\nid: 4\nretry: 10\n\nevent: x\n\ndata: y\n\n';
    expect(parse([new TextEncoder().encode(text)])).toEqual([{ event: 'message', data: 'y' }]);
  });

  it.each(['data: ', 'data: a\ndata: '])('refuses an event without end (%j)', (beginning) => {
    const parser = new SseParser();
    const push = (): void => {
      parser.push(new TextEncoder().encode(beginning));
      for (let i = 0; i < 5; i++) parser.push(new Uint8Array(1024 * 1024).fill(97));
    };
    expect(push).toThrow(expect.objectContaining({ code: 'MESSAGE_TOO_LARGE' }) as Error);
  });

  it('refuses an event of empty lines without end', () => {
    const parser = new SseParser();
    const lines = new TextEncoder().encode('data:\n'.repeat(100_000));
    const push = (): void => {
      for (let i = 0; i < 50; i++) parser.push(lines);
    };
    expect(push).toThrow(expect.objectContaining({ code: 'MESSAGE_TOO_LARGE' }) as Error);
  });
});
