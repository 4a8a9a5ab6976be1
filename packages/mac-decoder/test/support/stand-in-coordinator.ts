import { MuserError, type ProducerEntry, type UnavailableProducer } from '@muser/protocol';
import { addPlacementService, createServer, PeerListener, type Identity } from '@muser/transport';

export interface StandInCoordinator {
  readonly target: string;
  /** Sends these lists to every decoder that watches, and to those that come later. */
  publish(producers: readonly ProducerEntry[], unavailable?: readonly UnavailableProducer[]): void;
  /** Keeps its streams open and sends nothing more. */
  fallSilent(): void;
  close(): Promise<void>;
}

const HEARTBEAT_MS = 1_000;

/** Hands decoders a list of producers over the real transport. */
export async function startStandInCoordinator(identity: Identity, port = 0): Promise<StandInCoordinator> {
  let producers: readonly ProducerEntry[] = [];
  let unavailable: readonly UnavailableProducer[] = [];
  let changed = signalOnce();
  const notify = (): void => {
    changed.resolve();
    changed = signalOnce();
  };
  const closed = new AbortController();
  const server = createServer();
  addPlacementService(server, {
    authorize: () => undefined,
    renewCertificate: () => Promise.reject(new MuserError('ENROLL_REFUSED', 'no certificates here')),
    watch: async (call) => {
      const { signal } = call;
      const ended = new Promise<void>((resolve) => {
        for (const end of [signal, closed.signal]) end.addEventListener('abort', () => resolve(), { once: true });
      });
      while (!signal.aborted && !closed.signal.aborted) {
        const next = changed.promise;
        const lists = { producers: [...producers], unavailable: [...unavailable] };
        await call.send({ coordinatorTimeMs: Date.now(), ...lists, renewOrder: '' });
        await Promise.race([next, ended]);
      }
    },
  });
  const listener = await PeerListener.listen({ identity, host: '127.0.0.1', port, server });
  const heartbeat = setInterval(notify, HEARTBEAT_MS);
  return {
    target: `127.0.0.1:${listener.address.port}`,
    publish: (next, absent = []) => {
      producers = next;
      unavailable = absent;
      notify();
    },
    fallSilent: () => clearInterval(heartbeat),
    close: async () => {
      clearInterval(heartbeat);
      closed.abort();
      await listener.close(0);
    },
  };
}

function signalOnce(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((settle) => (resolve = settle));
  return { promise, resolve };
}
