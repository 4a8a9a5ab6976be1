// The GB10's end of what is measured on a link: a raw socket that copies and echoes, and a producer's listener that sends
// frames. What it is and what it sends comes in one message; its ports go back in another.
import { createServer, type AddressInfo, type Socket } from 'node:net';
import { signingKeyFromSeed } from '@muser/protocol';
import { addHandoffService, createServer as createGrpcServer, PeerListener, type Identity } from '@muser/transport';

export interface FarEndSetup {
  readonly host: string;
  /** Of a copy. */
  readonly bytes: number;
  readonly identity: Omit<Identity, 'signingKey'>;
  readonly signingSeed: Uint8Array;
}

export interface FarEndPorts {
  readonly raw: number;
  readonly frames: number;
}

const FRAME = Buffer.alloc(1 << 20, 0x5a);
/** One byte asks for the copy, any other is echoed. */
const COPY = 0x43;

async function copy(socket: Socket, total: number): Promise<void> {
  for (let sent = 0; sent < total && !socket.destroyed; sent += FRAME.length) {
    const piece = FRAME.subarray(0, Math.min(FRAME.length, total - sent));
    await new Promise<void>((resolve) => socket.write(piece, () => resolve()));
  }
  socket.end();
}

function listenRaw({ host, bytes }: FarEndSetup): Promise<number> {
  const server = createServer((socket) => {
    socket.setNoDelay(true);
    socket.on('error', () => socket.destroy());
    socket.on('data', (data) => {
      if (data[0] === COPY) void copy(socket, bytes);
      else socket.write(data);
    });
  });
  return new Promise((resolve) => server.listen(0, host, () => resolve((server.address() as AddressInfo).port)));
}

/** A call sends as many frames as its request says. */
async function listenFrames({ host, identity, signingSeed }: FarEndSetup): Promise<number> {
  const server = createGrpcServer();
  addHandoffService(server, {
    authorize: () => undefined,
    prefill: async (call) => {
      const count = call.requestBytes.readUInt32LE();
      for (let frame = 0; frame < count; frame += 1) await call.send(FRAME);
    },
  });
  const own: Identity = { ...identity, signingKey: signingKeyFromSeed(signingSeed) };
  const listener = await PeerListener.listen({ identity: own, host, port: 0, server });
  return listener.address.port;
}

process.once('message', (message) => {
  const setup = message as FarEndSetup;
  void Promise.all([listenRaw(setup), listenFrames(setup)]).then(([raw, frames]) => process.send?.({ raw, frames }));
});
// It ends with the process that started it.
process.once('disconnect', () => process.exit(0));
