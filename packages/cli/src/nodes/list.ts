import { CliError, EXIT } from '../exit.js';
import { formatCount, formatTable } from '../format.js';
import { listenForInterrupts } from '../signals.js';
import { readEndpoints, stateLayout, stateRoot } from '../state.js';
import { CoordinatorClient, type NodeRecord } from '../system/coordinator-client.js';
import { printable } from '../terminal.js';

/** Prints what the coordinator of a state folder knows about its nodes. */
export async function listNodes(options: { state: string | undefined; json: boolean }): Promise<void> {
  const layout = stateLayout(stateRoot(options.state, process.env));
  const endpoints = await readEndpoints(layout);
  if (endpoints === null) {
    throw new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', `no system runs with the state folder ${layout.root}`, {
      advice: 'Start one with `muser dev`, or name its folder with --state.',
    });
  }
  const interrupts = listenForInterrupts();
  try {
    const client = await CoordinatorClient.open(endpoints.coordinator, layout);
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
    node.state,
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
