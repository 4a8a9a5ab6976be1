// The sockets, met by strangers and by a worker that misbehaves on them.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { stat } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { dirname } from 'node:path';

import { createLogger } from '@muser/service-kit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import type { FrameConnection } from '../src/bridge/connection.js';
import { encodeFrame } from '../src/bridge/frames.js';
import { SocketServer } from '../src/bridge/socket-server.js';

let server: SocketServer;
let admitted: FrameConnection[];
const clients: Socket[] = [];

beforeEach(async () => {
  admitted = [];
  const events = {
    onControl: (connection: FrameConnection) => admitted.push(connection),
    onData: (connection: FrameConnection) => admitted.push(connection),
  };
  server = await SocketServer.listen(events, createLogger('test', 'silent'), 200);
});

afterEach(async () => {
  for (const client of clients.splice(0)) client.destroy();
  await server.close();
});

async function dial(path: string): Promise<Socket> {
  const socket = connect(path);
  socket.on('error', () => undefined).resume();
  clients.push(socket);
  await once(socket, 'connect');
  return socket;
}

const closed = (socket: Socket): Promise<unknown> => once(socket, 'close');
const hello = (secret: string, role: 'control' | 'data' = 'control'): Buffer =>
  encodeFrame('hello', {
    role,
    secret,
    pid: 1,
    ...(role === 'control' ? { version: '1' } : { rank: 0, layers: [0, 1], heads: [0, 1] }),
  });

describe('the sockets of a worker', () => {
  it('lie in a folder that is closed to others and gone after the end', async () => {
    const folder = dirname(server.controlSocket);
    expect((await stat(folder)).mode & 0o777).toBe(0o700);
    await server.close();
    await expect(stat(folder)).rejects.toThrow('ENOENT');
  });

  // fault: code-in-messages
  it('take who says hello with the secret', async () => {
    const socket = await dial(server.controlSocket);
    socket.write(hello(server.secret));
    await expect.poll(() => admitted.length).toBe(1);
  });

  it('close on who stays silent', async () => {
    await closed(await dial(server.dataSocket));
    expect(admitted).toEqual([]);
  });

  // fault: code-in-messages
  it.each(['', '00', 'ff'.repeat(32)])('close on a wrong secret', async (secret) => {
    const socket = await dial(server.controlSocket);
    socket.write(hello(secret));
    await closed(socket);
    expect(admitted).toEqual([]);
  });

  it('close on the right hello at the wrong door, and on anything else first', async () => {
    for (const first of [
      hello(server.secret, 'data'),
      encodeFrame('milestone', { name: 'ready', ms: 1 }),
      randomBytes(99),
    ]) {
      const socket = await dial(server.controlSocket);
      socket.write(first);
      await closed(socket);
    }
    expect(admitted).toEqual([]);
  });

  it('say why a connection was closed', async () => {
    const socket = await dial(server.controlSocket);
    socket.write(hello(server.secret));
    await expect.poll(() => admitted.length).toBe(1);
    socket.write(Buffer.from([255, 255, 255, 255]));
    expect(await admitted[0]?.closed).toMatchObject({ code: 'MESSAGE_TOO_LARGE', reason: 'FRAME_TOO_LARGE' });
  });

  it('notice a connection that ends within a frame', async () => {
    const socket = await dial(server.controlSocket);
    socket.write(hello(server.secret));
    await expect.poll(() => admitted.length).toBe(1);
    socket.end(Buffer.from([200, 0, 0]));
    expect(await admitted[0]?.closed).toMatchObject({ code: 'MESSAGE_INVALID' });
  });
});
