// The far end of a raw copy: sends bytes to whoever connects, and echoes what it gets before.
import { createServer } from 'node:net';

const [host = '', byteCount = '0'] = process.argv.slice(2);
const CHUNK = Buffer.alloc(1 << 20, 0x5a);
/** One byte asks for the copy, any other is echoed. */
const COPY = 0x43;

const server = createServer((socket) => {
  socket.setNoDelay(true);
  socket.on('error', () => socket.destroy());
  socket.on('data', (data) => {
    if (data[0] === COPY) void copy(Number(byteCount));
    else socket.write(data);
  });

  async function copy(total: number): Promise<void> {
    for (let sent = 0; sent < total && !socket.destroyed; sent += CHUNK.length) {
      const piece = CHUNK.subarray(0, Math.min(CHUNK.length, total - sent));
      await new Promise<void>((resolve) => socket.write(piece, () => resolve()));
    }
    socket.end();
  }
});
server.listen(0, host, () => {
  const address = server.address();
  if (address !== null && typeof address === 'object') process.stdout.write(`${address.port}\n`);
});
// It ends with the process that started it.
process.stdin.resume().on('end', () => process.exit(0));
