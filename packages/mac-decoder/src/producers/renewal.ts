import { toMuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';
import { PeerClient, type LiveIdentity } from '@muser/transport';

const ANSWER_LIMIT_MS = 5_000;
/** After a failure; the coordinator repeats its order with every list. */
const RETRY_AFTER_MS = 10_000;

export interface CertificateRenewalOptions {
  readonly identity: LiveIdentity;
  /** gRPC address of the coordinator, "host:port". */
  readonly target: string;
  readonly logger: Logger;
}

/** Renews this decoder's TLS key and certificate when the coordinator's list has an order to do so. */
export class CertificateRenewal {
  private readonly stop = new AbortController();
  private readonly carriedOut = new Set<string>();
  private running: Promise<void> | null = null;
  private notBefore = 0;

  constructor(private readonly options: CertificateRenewalOptions) {}

  /** @param order of the newest list; each is carried out once, an empty one never */
  follow(order: string): void {
    if (order === '' || this.carriedOut.has(order) || this.running !== null) return;
    if (performance.now() < this.notBefore || this.stop.signal.aborted) return;
    this.running = this.renew(order).finally(() => (this.running = null));
  }

  async close(): Promise<void> {
    this.stop.abort();
    await this.running;
  }

  private async renew(order: string): Promise<void> {
    const { identity, target, logger } = this.options;
    const client = PeerClient.connect({ identity: identity.current, target, expect: { role: 'coordinator' } });
    try {
      const limits = { signal: this.stop.signal, idleTimeoutMs: ANSWER_LIMIT_MS };
      const { certificate } = await client.renewCertificate(await identity.request(), limits);
      await identity.install(certificate);
      this.carriedOut.add(order);
      logger.info({ serial: identity.serial }, 'certificate renewed');
    } catch (error) {
      const { code, message } = toMuserError(error, 'INTERNAL');
      this.notBefore = performance.now() + RETRY_AFTER_MS;
      if (!this.stop.signal.aborted) logger.warn({ code, reason: message }, 'certificate not renewed');
    } finally {
      client.close();
    }
  }
}
