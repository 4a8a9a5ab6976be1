import { createSecureServer, type Http2Session } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { FLOW_CONTROL_WINDOW_BYTES } from '../src/index.js';
import { afterTest, authority, connect, producer } from './harness.js';

// HTTP/2 begins with windows of 64 KiB, which is then all that moves in a round trip.
// fault: small-flow-window
it('the windows of a client are as large as a link with a long round trip needs, on each stream and in all', async () => {
  const server = createSecureServer({
    key: producer.tlsKeyPem,
    cert: producer.tlsCertificatePem,
    ca: authority.caPem,
    requestCert: true,
    minVersion: 'TLSv1.3',
  });
  afterTest(() => new Promise((resolve) => server.close(resolve)));
  const opened = new Promise<Http2Session>((resolve) => server.once('session', resolve));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const client = connect(`127.0.0.1:${(server.address() as AddressInfo).port}`);
  const call = client.prefill(Buffer.alloc(0))[Symbol.asyncIterator]();
  const ended = call.next().catch(() => undefined);

  // As the other end sees them: what it may send before anything was read.
  const session = await opened;
  await expect.poll(() => session.remoteSettings.initialWindowSize).toBe(FLOW_CONTROL_WINDOW_BYTES);
  await expect.poll(() => session.state.remoteWindowSize).toBeGreaterThanOrEqual(FLOW_CONTROL_WINDOW_BYTES);
  client.close();
  await ended;
});
