import { listenForInterrupts } from '../signals.js';
import type { ChangedNode, CoordinatorClient, NodeRecord } from '../system/coordinator-client.js';
import { printable } from '../terminal.js';
import { connectCoordinator } from './connect.js';
import { findNode } from './find.js';

export interface TrustOptions {
  /** Name or id. */
  node: string;
  state: string | undefined;
  json: boolean;
}

/** Gives a running node a new TLS key and certificate, and waits until it has them. */
export async function rotateNode(options: TrustOptions & { timeoutSeconds: number }): Promise<void> {
  const deadlineMs = options.timeoutSeconds * 1000;
  await change(
    options,
    (client, { nodeId }, signal) => client.rotate(nodeId, deadlineMs, signal),
    ({ name }) => `${name} has a new certificate; what runs goes on`,
  );
}

/** Ends a node's part in the system, for good. */
export async function revokeNode(options: TrustOptions): Promise<void> {
  await change(
    options,
    (client, { nodeId }, signal) => client.revoke(nodeId, signal),
    ({ name }) => `${name} is revoked; what it ran ends within seconds`,
  );
}

async function change(
  { node, state, json }: TrustOptions,
  work: (client: CoordinatorClient, found: NodeRecord, signal: AbortSignal) => Promise<ChangedNode>,
  describe: (node: NodeRecord) => string,
): Promise<void> {
  const interrupts = listenForInterrupts();
  try {
    const client = await connectCoordinator(state);
    const found = await findNode(client, node, interrupts.signal);
    const changed = await work(client, found, interrupts.signal);
    process.stdout.write(`${json ? JSON.stringify(changed.raw) : printable(describe(changed.node))}\n`);
  } finally {
    interrupts.dispose();
  }
}
