import { describe, expect, it } from 'vitest';
import {
  ERROR_CODES,
  fromEngineError,
  isErrorCode,
  MuserError,
  toMuserError,
  withoutForeignText,
} from '../src/errors.js';

describe('MuserError', () => {
  it.each(Object.entries(ERROR_CODES))('%s is complete', (code, info) => {
    expect(code).toMatch(/^[A-Z]+(_[A-Z]+)*$/);
    expect(info.httpStatus).toBeGreaterThanOrEqual(400);
    expect(info.meaning).toMatch(/^[A-Z].*\.$/);
    expect(info.advice).toMatch(/^[A-Z].*\.$/);
    expect(isErrorCode(code)).toBe(true);
  });

  it('knows no code that is not in the list', () => {
    expect(['', 'toString', '__proto__', 'internal', 7, null].filter(isErrorCode)).toEqual([]);
  });

  it('tells others code, message and details, but neither cause nor stack', () => {
    const error = new MuserError('QUEUE_FULL', 'queue has 16 of 16', {
      cause: new Error('secret'),
      details: { limit: 16 },
    });
    const expected = { code: 'QUEUE_FULL', message: 'queue has 16 of 16', retryable: true, details: { limit: 16 } };
    expect(JSON.parse(JSON.stringify(error))).toEqual(expected);
  });

  it('wraps what is thrown elsewhere and passes itself through', () => {
    const own = new MuserError('STALLED', 'x');
    expect(toMuserError(own, 'INTERNAL')).toBe(own);
    const other = new RangeError('bad');
    expect(toMuserError(other, 'ENGINE_FAILED')).toMatchObject({ code: 'ENGINE_FAILED', message: 'bad', cause: other });
    expect(toMuserError('text', 'INTERNAL')).toMatchObject({ code: 'INTERNAL', message: 'text' });
  });

  it('keeps the code of an error of the engine, and makes a wrong argument a fault of ours', () => {
    const of = (code: unknown): Error => Object.assign(new Error('rows end at 7'), { name: 'EngineError', code });
    expect(fromEngineError(of('RANGE_VIOLATION'))).toMatchObject({ code: 'RANGE_VIOLATION', message: 'rows end at 7' });
    expect(fromEngineError(of('INVALID_ARGUMENT')).code).toBe('INTERNAL');
    const own = new MuserError('STALLED', 'x');
    expect(fromEngineError(own)).toBe(own);
    // Other errors with a code, such as those of Node, say nothing in the words of the list.
    expect(fromEngineError(Object.assign(new Error('x'), { code: 'CANCELLED' })).code).toBe('ENGINE_FAILED');
  });

  it('keeps the text of an error that is not ours away from peers and clients', () => {
    const own = new MuserError('STALLED', 'x');
    expect(withoutForeignText(own)).toBe(own);
    const foreign = new SyntaxError('unexpected token in "my secret prompt"');
    const told = withoutForeignText(foreign);
    expect(told).toMatchObject({ code: 'INTERNAL', cause: foreign });
    expect(JSON.stringify(told)).not.toContain('secret');
  });

  it('names aborts and timeouts', () => {
    expect(toMuserError(AbortSignal.abort().reason, 'INTERNAL').code).toBe('CANCELLED');
    expect(toMuserError(new DOMException('late', 'TimeoutError'), 'INTERNAL').code).toBe('DEADLINE_EXCEEDED');
  });
});
