import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { TestIdentity } from '@muser/testing';

export const VICTIM_FRAMES = 64;

/** A server that answers each call with VICTIM_FRAMES frames of 1 MiB. */
export class Victim {
  readonly port: number;
  readonly #child: ChildProcess;

  static async start({ nodeId, tlsKeyPem, tlsCertificatePem, caPem }: TestIdentity): Promise<Victim> {
    const child = fork(fileURLToPath(new URL('victim.mjs', import.meta.url)), { execArgv: [] });
    child.send({ identity: { nodeId, tlsKeyPem, tlsCertificatePem, caPem } });
    const [{ port }] = (await once(child, 'message')) as [{ port: number }];
    return new Victim(child, port);
  }

  private constructor(child: ChildProcess, port: number) {
    this.#child = child;
    this.port = port;
  }

  /** The most memory that it has ever had. */
  async peakBytes(): Promise<number> {
    const answer = once(this.#child, 'message');
    this.#child.send('memory');
    const [{ peakBytes }] = (await answer) as [{ peakBytes: number }];
    return peakBytes;
  }

  async stop(): Promise<void> {
    const exit = once(this.#child, 'exit');
    this.#child.disconnect();
    await exit;
  }
}
