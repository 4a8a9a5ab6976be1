import { formatCount, formatTable } from '../format.js';
import { listenForInterrupts } from '../signals.js';
import type { NodeRecord } from '../system/coordinator-client.js';
import { printable } from '../terminal.js';
import { connectCoordinator } from './connect.js';

/** Prints what the coordinator of a state folder knows about its nodes. */
export async function listNodes(options: { state: string | undefined; json: boolean }): Promise<void> {
  const interrupts = listenForInterrupts();
  try {
    const client = await connectCoordinator(options.state);
    const { nodes, raw } = await client.nodes(interrupts.signal);
    process.stdout.write(`${options.json ? JSON.stringify(raw) : nodeTable(nodes)}\n`);
  } finally {
    interrupts.dispose();
  }
}

function nodeTable(nodes: readonly NodeRecord[]): string {
  if (nodes.length === 0) return 'no nodes';
  const rows = nodes.map((node) => [
    node.name,
    node.role,
    node.state === 'healthy' && node.modelLoaded === false ? 'healthy (idle: unloaded)' : node.state,
    node.backend ?? '-',
    node.model?.name ?? '-',
    node.load === null ? '-' : `${node.load.activeTransfers} running, ${node.load.queueLength} waiting`,
    node.load === null || node.load.prefillTokensPerSecond === 0
      ? '-'
      : `${formatCount(node.load.prefillTokensPerSecond)} tokens/s`,
    node.addresses.join(', ') || '-',
    node.nodeId,
  ]);
  const head = ['NAME', 'ROLE', 'STATE', 'BACKEND', 'MODEL', 'LOAD', 'PREFILL', 'ADDRESS', 'ID'];
  return formatTable([head, ...rows.map((row) => row.map(printable))]);
}
