import { join } from 'node:path';
import { execa } from 'execa';
import { CliError, EXIT } from '../exit.js';
import { printable } from '../terminal.js';
import type { CoordinatorClient } from './coordinator-client.js';
import { childEnvironment } from './process.js';

const IDENTITY_LIMIT_MS = 30_000;

export interface NodeToEnroll {
  name: string;
  role: 'producer' | 'decoder';
  /** Program that has `identity create` and `identity install`. */
  entry: string;
  stateDir: string;
}

/**
 * Gives a node of this machine its certificate. Its keys are made by its own program and stay in its folder; keys that are
 * there are used again, so a second run enrolls nothing new. Returns the node's id.
 */
export async function enroll(node: NodeToEnroll, coordinator: CoordinatorClient, signal: AbortSignal): Promise<string> {
  const folder = join(node.stateDir, 'identity');
  const request = JSON.parse(await identityCommand(node, ['create', '--dir', folder], '', signal)) as unknown;
  const { nodeId, bundle } = await coordinator.enroll(
    { name: node.name, role: node.role, addresses: [], request },
    signal,
  );
  await identityCommand(node, ['install', '--dir', folder], JSON.stringify(bundle), signal);
  return nodeId;
}

async function identityCommand(
  node: NodeToEnroll,
  args: readonly string[],
  input: string,
  signal: AbortSignal,
): Promise<string> {
  const result = await execa(process.execPath, [node.entry, 'identity', ...args], {
    input,
    reject: false,
    extendEnv: false,
    env: childEnvironment(process.env),
    timeout: IDENTITY_LIMIT_MS,
    maxBuffer: 1024 * 1024,
    cancelSignal: signal,
  });
  if (signal.aborted) throw signal.reason;
  if (result.exitCode === 0) return result.stdout;
  const complaint = printable(result.stderr).trim().split('\n').at(-1) ?? '';
  throw new CliError(EXIT.failed, 'ENROLL_REFUSED', `the ${node.role}'s identity: ${complaint || result.shortMessage}`);
}
