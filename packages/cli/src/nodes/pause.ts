import { CliError, EXIT, InterruptedError } from '../exit.js';
import { UnreachableError } from '../http.js';
import { listenForInterrupts } from '../signals.js';
import type { CoordinatorClient, NodeRecord } from '../system/coordinator-client.js';
import { printable, StatusOutput } from '../terminal.js';
import { connectCoordinator } from './connect.js';
import { findNode, LIST_ADVICE } from './find.js';

export interface PauseOptions {
  /** Name or id. */
  node: string;
  paused: boolean;
  /** When pausing: ends the transfers that run instead of finishing them. */
  now: boolean;
  state: string | undefined;
  timeoutSeconds: number;
  json: boolean;
}

/** Pauses or resumes a producer and waits until that is done. */
export async function setPaused(options: PauseOptions): Promise<void> {
  const { paused } = options;
  const output = new StatusOutput(process.stderr, { quiet: options.json, env: process.env });
  const interrupts = listenForInterrupts();
  let isOrdered = false;
  try {
    const client = await connectCoordinator(options.state);
    const { name, nodeId } = await findProducer(client, options.node, interrupts.signal);
    // From here on nobody can tell whether it has arrived.
    isOrdered = true;
    output.line(`waiting until ${printable(name)} is ${paused ? 'paused' : 'healthy'}`);
    const order = { paused, cancelRunning: options.now, deadlineMs: options.timeoutSeconds * 1000 };
    const { node, raw } = await client.setPaused(nodeId, order, interrupts.signal).catch((error: unknown) => {
      throw withAdvice(error, nodeId, paused);
    });
    process.stdout.write(`${options.json ? JSON.stringify(raw) : describe(node)}\n`);
  } catch (error) {
    const verb = paused ? 'pauses' : 'resumes';
    if (isOrdered && (error instanceof InterruptedError || isCutOff(error)))
      output.line(`the order may stand: the producer ${verb} all the same if it has come there`);
    throw error;
  } finally {
    interrupts.dispose();
  }
}

/** The connection to the coordinator stood, and ended without an answer. */
function isCutOff(error: unknown): boolean {
  if (!(error instanceof CliError) || error.code !== 'PEER_UNREACHABLE') return false;
  return error.cause instanceof Error && !(error.cause instanceof UnreachableError);
}

async function findProducer(client: CoordinatorClient, wanted: string, signal: AbortSignal): Promise<NodeRecord> {
  const node = await findNode(client, wanted, signal);
  if (node.role === 'producer') return node;
  throw new CliError(EXIT.failed, 'INVALID_REQUEST', `"${wanted}" is a ${node.role}; only producers can be paused`, {
    advice: LIST_ADVICE,
  });
}

/** @param nodeId may be typed as it is; a name may hold blanks and quotes */
function withAdvice(error: unknown, nodeId: string, paused: boolean): unknown {
  if (!(error instanceof CliError) || error.code !== 'DEADLINE_EXCEEDED') return error;
  const advice = paused
    ? `It goes on by itself when they have ended; \`muser node pause --now ${nodeId}\` ends them.`
    : 'It goes on by itself; `muser node list` shows when it is healthy.';
  return new CliError(error.exitCode, error.code, error.message, { advice, cause: error });
}

function describe({ name, state, modelLoaded }: NodeRecord): string {
  const model = modelLoaded === null ? '' : `: its model is ${modelLoaded ? 'loaded' : 'unloaded'}`;
  return printable(`${name} is ${state}${model}`);
}
