import type { MuserError, ProducerList, UnavailableReason } from '@muser/protocol';
import { PeerClient, type Identity } from '@muser/transport';
import { onTestFinished } from 'vitest';

import { digest } from './producer.js';

/** A decoder's end of Placement.WatchProducers. */
export class StandInDecoder {
  readonly #lists: AsyncGenerator<ProducerList, void, void>;

  constructor(identity: Identity, target: string, options: { fingerprint?: Uint8Array; coordinatorId?: string } = {}) {
    const { fingerprint = digest('fingerprint'), coordinatorId } = options;
    const expect = { role: 'coordinator', ...(coordinatorId !== undefined && { nodeId: coordinatorId }) } as const;
    const client = PeerClient.connect({ identity, target, expect });
    onTestFinished(() => client.close());
    const model = { fingerprint, modelDigest: digest('decoder weights'), name: 'muse-nano' };
    this.#lists = client.watchProducers({ protocolVersion: 1, model, name: 'decoder' });
  }

  /** The next list for which the condition holds. */
  async list(holds: (list: ProducerList) => boolean = () => true): Promise<ProducerList> {
    for (;;) {
      const { value } = await this.#lists.next();
      if (value === undefined) throw new Error('the stream has ended');
      if (holds(value)) return value;
    }
  }

  async close(): Promise<void> {
    await this.#lists.return();
  }

  /** The error that ends the stream. */
  async end(): Promise<MuserError> {
    try {
      for (;;) await this.list();
    } catch (error) {
      return error as MuserError;
    }
  }
}

export const has =
  (...nodeIds: string[]) =>
  ({ producers }: ProducerList): boolean =>
    producers.length === nodeIds.length && producers.every(({ nodeId }) => nodeIds.includes(nodeId));

/** Whether the list names just this producer, without a ticket, and why. */
export const lacks =
  (nodeId: string, reason: UnavailableReason) =>
  ({ producers, unavailable }: ProducerList): boolean =>
    producers.length === 0 &&
    unavailable.length === 1 &&
    unavailable[0]?.nodeId === nodeId &&
    unavailable[0].reason === reason;
