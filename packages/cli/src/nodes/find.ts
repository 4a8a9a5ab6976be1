import { CliError, EXIT } from '../exit.js';
import type { CoordinatorClient, NodeRecord } from '../system/coordinator-client.js';

export const LIST_ADVICE = '`muser node list` shows the nodes.';

/** The node of that name or id that is not revoked. */
export async function findNode(client: CoordinatorClient, wanted: string, signal: AbortSignal): Promise<NodeRecord> {
  const { nodes } = await client.nodes(signal);
  const named = nodes.filter(({ nodeId, name }) => nodeId === wanted || name === wanted);
  const present = named.filter(({ state }) => state !== 'revoked');
  const [node] = present;
  if (node === undefined) {
    const what = named.length === 0 ? `there is no node "${wanted}"` : `the node "${wanted}" was revoked`;
    throw new CliError(EXIT.failed, 'NOT_FOUND', what, { advice: LIST_ADVICE });
  }
  if (present.length === 1) return node;
  const ids = present.map(({ nodeId }) => nodeId).join(', ');
  throw new CliError(EXIT.failed, 'INVALID_REQUEST', `${present.length} nodes are called "${wanted}"`, {
    advice: `Use the id: ${ids}.`,
  });
}
