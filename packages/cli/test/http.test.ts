import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it, onTestFinished } from 'vitest';
import { requestJson } from '../src/http.js';

const MAX_BODY_BYTES = 4 * 1024 * 1024;

/** @param length of the JSON that the server answers */
async function answered(length: number): Promise<unknown> {
  const server = createServer((_, response) => response.end(`"${'x'.repeat(length - 2)}"`));
  onTestFinished(() => void server.close());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const url = new URL(`http://127.0.0.1:${port}/`);
  return (await requestJson({ method: 'GET', url, signal: new AbortController().signal, timeoutMs: 30_000 })).body;
}

it('takes an answer up to its cap, and none beyond it', async () => {
  expect(String(await answered(MAX_BODY_BYTES))).toHaveLength(MAX_BODY_BYTES - 2);
  await expect(answered(MAX_BODY_BYTES + 1)).rejects.toMatchObject({ code: 'MESSAGE_TOO_LARGE' });
});
