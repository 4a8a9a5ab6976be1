import type { ProducerEntry, ProducerList, UnavailableProducer, UnavailableReason } from '@muser/protocol';
import { Circuit } from './circuit.js';

/** A producer as far as this decoder knows it. */
export interface Producer {
  readonly entry: ProducerEntry;
  /** End of its ticket on this process's monotonic clock, in milliseconds. */
  readonly ticketEndsAt: number;
  /** Whether it works. */
  readonly circuit: Circuit;
  /** Whether it is fast enough for requests in mode `auto`; one that was left because it was too slow opens it. */
  readonly pace: Circuit;
}

/** What was learned of an enrolled producer, kept while it is unavailable: transfers that run there still end. */
interface TrackRecord {
  readonly circuit: Circuit;
  readonly pace: Circuit;
  /** By what the coordinator said last; one that has not heard of it yet has said nothing. */
  readonly wasReady: boolean;
}

const WHY_UNAVAILABLE: Readonly<{ [reason in UnavailableReason]: string }> = {
  not_heard: 'has not been heard by the coordinator yet',
  unreachable: 'cannot be reached by the coordinator',
  error: 'is in error (muser node list says why)',
  other_model: 'has another model',
};

/** A ticket this close to its end is not used: the producer's clock may be a little ahead. */
const TICKET_MARGIN_MS = 2_000;

/**
 * The producers that the coordinator last told of. It stays as it is while the coordinator is away; a producer drops
 * out when its ticket has ended.
 */
export class ProducerDirectory {
  private producers = new Map<string, Producer>();
  private unavailable: readonly UnavailableProducer[] = [];
  private records = new Map<string, TrackRecord>();

  constructor(private readonly now: () => number = () => performance.now()) {}

  /** Takes the coordinator's newest list in place of the last one. */
  update(list: ProducerList): void {
    const producers = new Map<string, Producer>();
    const records = new Map<string, TrackRecord>();
    for (const entry of list.producers) {
      const { circuit, pace, wasReady } = this.recordOf(entry.nodeId);
      const isReady = entry.state === 'ready';
      if (isReady && !wasReady) {
        circuit.reset();
        pace.reset();
      }
      records.set(entry.nodeId, { circuit, pace, wasReady: isReady });
      // Lifetimes are taken from the coordinator's own clock, so that a wrong clock here does not matter.
      const ticketEndsAt = this.now() + (entry.ticketExpiresAtMs - list.coordinatorTimeMs);
      producers.set(entry.nodeId, { entry, ticketEndsAt, circuit, pace });
    }
    for (const { nodeId, reason } of list.unavailable) {
      const record = this.recordOf(nodeId);
      records.set(nodeId, reason === 'not_heard' ? record : { ...record, wasReady: false });
    }
    this.producers = producers;
    this.unavailable = list.unavailable;
    this.records = records;
  }

  /** Wrong rows were found that may be of any of these. */
  distrust(nodeIds: readonly string[]): void {
    for (const nodeId of nodeIds) this.records.get(nodeId)?.circuit.failed('KV_MISMATCH');
  }

  all(): Producer[] {
    return [...this.producers.values()];
  }

  /** Producers that may take a prompt of that length now. */
  available(promptTokens: number): Producer[] {
    return this.all().filter((producer) => this.obstacle(producer, promptTokens) === null);
  }

  /** That producer, if it may take the rest of such a prompt after its link dropped; its circuit tells when. */
  availableAgain(nodeId: string, promptTokens: number): Producer | null {
    const producer = this.producers.get(nodeId);
    return producer === undefined || this.unusable(producer, promptTokens) !== null ? null : producer;
  }

  /** Why no producer takes such a prompt now, for people. Empty when one does. */
  explainAbsence(promptTokens: number): string {
    const obstacles = this.all().map((producer) => {
      const obstacle = this.obstacle(producer, promptTokens);
      return obstacle === null ? null : `${producer.entry.name} ${obstacle}`;
    });
    for (const { name, reason } of this.unavailable) obstacles.push(`${name} ${WHY_UNAVAILABLE[reason]}`);
    if (obstacles.length === 0) return 'The coordinator knows no healthy producer with this model.';
    if (obstacles.includes(null)) return '';
    return `No producer takes this prompt now: ${obstacles.join('; ')}.`;
  }

  private recordOf(nodeId: string): TrackRecord {
    const fresh = (): Circuit => new Circuit(this.now);
    return this.records.get(nodeId) ?? { circuit: fresh(), pace: fresh(), wasReady: false };
  }

  private obstacle(producer: Producer, promptTokens: number): string | null {
    const { circuit } = producer;
    const unusable = this.unusable(producer, promptTokens);
    if (unusable !== null || circuit.admits) return unusable;
    const { pauseLeftMs } = circuit;
    return pauseLeftMs > 0
      ? `failed a moment ago and is tried again in ${pauseLeftMs} ms`
      : 'failed a moment ago and is being tried again by another request';
  }

  private unusable({ entry, ticketEndsAt }: Producer, promptTokens: number): string | null {
    if (entry.state !== 'ready') return `is ${entry.state}`;
    if (ticketEndsAt - TICKET_MARGIN_MS <= this.now()) return 'has a ticket that ended (TICKET_EXPIRED)';
    if (promptTokens > entry.maxPromptTokens) {
      return `takes at most ${entry.maxPromptTokens} of ${promptTokens} tokens (PROMPT_TOO_LONG)`;
    }
    return null;
  }
}
