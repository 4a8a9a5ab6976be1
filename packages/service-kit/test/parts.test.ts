import { describe, expect, it } from 'vitest';

import { startParts } from '../src/index.js';

describe('startParts', () => {
  it('gives back what was started, and frees it in the reverse order, once', async () => {
    const freed: string[] = [];
    const service = await startParts((onClose) => {
      onClose(() => freed.push('first'));
      onClose(async () => {
        await Promise.resolve();
        freed.push('second');
      });
      return Promise.resolve({ port: 7 });
    });
    expect(service.port).toBe(7);
    await service.close();
    await service.close();
    expect(freed).toEqual(['second', 'first']);
  });

  it('frees what was there when a later part does not start, and says why that did not', async () => {
    const freed: string[] = [];
    const started = startParts((onClose) => {
      onClose(() => freed.push('first'));
      onClose(() => Promise.reject(new Error('cannot be freed')));
      return Promise.reject(new Error('no such model'));
    });
    await expect(started).rejects.toThrow('no such model');
    expect(freed).toEqual(['first']);
  });

  it('frees the others when one cannot be freed, and throws its failure', async () => {
    const freed: string[] = [];
    const service = await startParts((onClose) => {
      onClose(() => freed.push('first'));
      onClose(() => {
        throw new Error('cannot be freed');
      });
      return Promise.resolve({});
    });
    await expect(service.close()).rejects.toThrow('cannot be freed');
    expect(freed).toEqual(['first']);
  });
});
