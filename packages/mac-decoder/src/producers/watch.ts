import { setTimeout as sleep } from 'node:timers/promises';
import { PROTOCOL_VERSION, toMuserError, type ModelIdentity, type ProducerList } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import { PeerClient, type LiveIdentity } from '@muser/transport';

const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 5_000;
/** A stream that has lived this long was a good one: the next pause starts small again. */
const STEADY_MS = 10_000;
/** The coordinator sends its list at least every 1.5 s; one that is silent for this long is away. */
const SILENCE_LIMIT_MS = 5_000;

export interface CoordinatorWatchOptions {
  readonly identity: LiveIdentity;
  /** gRPC address of the coordinator, "host:port". */
  readonly target: string;
  readonly model: ModelIdentity;
  /** This decoder's name, for the operator. */
  readonly name: string;
  readonly logger: Logger;
  readonly onList: (list: ProducerList) => void;
}

/**
 * Follows the coordinator's list of producers for as long as the process runs. Where the stream breaks it is opened
 * again after a pause with jitter; what was told last stays valid meanwhile.
 */
export class CoordinatorWatch {
  private readonly stop = new AbortController();
  private readonly running: Promise<void>;
  private current: 'connected' | 'absent' = 'absent';

  constructor(private readonly options: CoordinatorWatchOptions) {
    this.running = this.run();
  }

  /** `connected` while a stream to the coordinator is open and has brought a list. */
  get state(): 'connected' | 'absent' {
    return this.current;
  }

  async close(): Promise<void> {
    this.stop.abort();
    await this.running;
  }

  private async run(): Promise<void> {
    let pauseMs = FIRST_PAUSE_MS;
    while (!this.stop.signal.aborted) {
      const startedAt = performance.now();
      await this.follow();
      this.current = 'absent';
      pauseMs = performance.now() - startedAt > STEADY_MS ? FIRST_PAUSE_MS : Math.min(LONGEST_PAUSE_MS, pauseMs * 2);
      await this.pause(pauseMs * (0.5 + Math.random() / 2));
    }
  }

  private async follow(): Promise<void> {
    const { identity, target, model, name, logger, onList } = this.options;
    let client: PeerClient | null = null;
    try {
      client = PeerClient.connect({ identity: identity.current, target, expect: { role: 'coordinator' } });
      const request = { protocolVersion: PROTOCOL_VERSION, model, name };
      const options = { signal: this.stop.signal, idleTimeoutMs: SILENCE_LIMIT_MS };
      for await (const list of client.watchProducers(request, options)) {
        if (this.current === 'absent') logger.info({ producers: list.producers.length }, 'coordinator connected');
        this.current = 'connected';
        onList(list);
      }
    } catch (error) {
      const { code, message } = toMuserError(error, 'UNAVAILABLE');
      if (!this.stop.signal.aborted) logger.warn({ code, reason: message }, 'coordinator is away');
    } finally {
      client?.close();
    }
  }

  private async pause(milliseconds: number): Promise<void> {
    // Only the abort rejects, and then the loop ends.
    await sleep(milliseconds, undefined, { signal: this.stop.signal }).catch(() => undefined);
  }
}
