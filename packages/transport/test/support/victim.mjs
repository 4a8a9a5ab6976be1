// A server in a process of its own, so that its memory can be told from that of its attackers.
import { addHandoffService, createServer, PeerListener } from '@muser/transport';

const MIB = 1024 * 1024;
const FRAMES = 64;

process.once('message', async ({ identity }) => {
  const server = createServer();
  addHandoffService(server, {
    authorize: () => undefined,
    prefill: async (call) => {
      for (let index = 0; index < FRAMES; index += 1) await call.send(Buffer.alloc(MIB, index));
    },
  });
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port: 0, server });
  process.on('message', () => process.send({ peakBytes: process.resourceUsage().maxRSS * 1024 }));
  process.send({ port: listener.address.port });
});
process.once('disconnect', () => process.exit());
