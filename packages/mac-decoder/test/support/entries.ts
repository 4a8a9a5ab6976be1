import type { ProducerEntry, ProducerList } from '@muser/protocol';

/** A healthy producer, for tests that never dial it. */
export function producerEntry(over: Partial<ProducerEntry> = {}): ProducerEntry {
  return {
    nodeId: `n${'a'.repeat(26)}`,
    name: 'spark',
    addresses: ['127.0.0.1:1'],
    signingPublicKey: new Uint8Array(32),
    producerModel: new Uint8Array(32),
    state: 'ready',
    queueLength: 0,
    prefillTokensPerSecond: 0,
    maxPromptTokens: 32_768,
    ticket: Uint8Array.of(1),
    ticketExpiresAtMs: 900_000,
    backend: 'llama',
    ...over,
  };
}

export function producerList(...producers: ProducerEntry[]): ProducerList {
  return { coordinatorTimeMs: 0, producers, renewOrder: '', unavailable: [] };
}
