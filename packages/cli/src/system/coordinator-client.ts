import type { ErrorCode } from '@muser/protocol';
import { z } from 'zod';
import { CliError, EXIT } from '../exit.js';
import { readText } from '../files.js';
import { requestJson, UnreachableError, type HttpRequest, type JsonAnswer } from '../http.js';
import { type StateLayout } from '../state.js';
import { printable } from '../terminal.js';

const MAX_TOKEN_BYTES = 64 * 1024;
const REQUEST_LIMIT_MS = 10_000;
/** The coordinator tells of a deadline that has passed; this is for one that says nothing any more. */
const ORDER_MARGIN_MS = 15_000;

const nodeSchema = z.object({
  nodeId: z.string(),
  name: z.string(),
  role: z.string(),
  addresses: z.array(z.string()),
  state: z.string(),
  since: z.unknown(),
  lastSeen: z.unknown(),
  load: z
    .object({ queueLength: z.number(), activeTransfers: z.number(), prefillTokensPerSecond: z.number() })
    .nullable(),
  model: z.object({ name: z.string(), fingerprint: z.string(), modelDigest: z.string() }).nullable(),
  backend: z.string().nullable(),
  modelLoaded: z.boolean().nullable(),
});
export type NodeRecord = z.infer<typeof nodeSchema>;

const errorSchema = z.object({ error: z.object({ code: z.string(), message: z.string() }) });
const enrolledSchema = z.object({ node: z.object({ nodeId: z.string() }), bundle: z.unknown() });

export interface ChangedNode {
  node: NodeRecord;
  /** The coordinator's answer as it came, for --json. */
  raw: unknown;
}

export interface Enrollment {
  name: string;
  role: 'producer' | 'decoder';
  addresses: string[];
  /** What the node's own `identity create` printed. */
  request: unknown;
}

/** The operator's interface of a coordinator on this machine, with the token from its state folder. */
export class CoordinatorClient {
  constructor(
    private readonly base: string,
    private readonly token: string,
  ) {}

  static async open(base: string, layout: StateLayout): Promise<CoordinatorClient> {
    return new CoordinatorClient(base, await readOperatorToken(layout));
  }

  /** Registers a node, or finds the registration of its key; returns what its `identity install` reads. */
  async enroll(enrollment: Enrollment, signal: AbortSignal): Promise<{ nodeId: string; bundle: unknown }> {
    const body = await this.#call('POST', '/api/nodes', signal, enrollment);
    const { node, bundle } = enrolledSchema.parse(body);
    return { nodeId: node.nodeId, bundle };
  }

  async setAddresses(nodeId: string, addresses: string[], signal: AbortSignal): Promise<void> {
    await this.#call('PATCH', `/api/nodes/${encodeURIComponent(nodeId)}`, signal, { addresses });
  }

  /** Every node with its state as the coordinator sees it; also the body as it came, for --json. */
  async nodes(signal: AbortSignal): Promise<{ nodes: NodeRecord[]; raw: unknown }> {
    const raw = await this.#call('GET', '/api/nodes', signal);
    return { nodes: z.object({ nodes: z.array(nodeSchema) }).parse(raw).nodes, raw };
  }

  /** Answers when the producer is as ordered, with the node and the body as it came. */
  async setPaused(
    nodeId: string,
    order: { paused: boolean; cancelRunning: boolean; deadlineMs: number },
    signal: AbortSignal,
  ): Promise<ChangedNode> {
    const { paused, cancelRunning, deadlineMs } = order;
    const path = `/api/nodes/${encodeURIComponent(nodeId)}/${paused ? 'pause' : 'resume'}`;
    const raw = await this.#call('POST', path, signal, paused ? { cancelRunning, deadlineMs } : { deadlineMs }, {
      limitMs: deadlineMs + ORDER_MARGIN_MS,
      failure: `the producer is not ${paused ? 'paused' : 'resumed'}`,
    });
    return changedNode(raw);
  }

  /** Answers when the node has its new certificate, with the node and the body as it came. */
  async rotate(nodeId: string, deadlineMs: number, signal: AbortSignal): Promise<ChangedNode> {
    const path = `/api/nodes/${encodeURIComponent(nodeId)}/rotate`;
    const limitMs = deadlineMs + ORDER_MARGIN_MS;
    const failure = 'the certificate is not renewed';
    return changedNode(await this.#call('POST', path, signal, { deadlineMs }, { limitMs, failure }));
  }

  async revoke(nodeId: string, signal: AbortSignal): Promise<ChangedNode> {
    return changedNode(await this.#call('DELETE', `/api/nodes/${encodeURIComponent(nodeId)}`, signal));
  }

  async #call(
    method: HttpRequest['method'],
    path: string,
    signal: AbortSignal,
    json?: unknown,
    { limitMs, failure } = { limitMs: REQUEST_LIMIT_MS, failure: 'the coordinator refused' },
  ): Promise<unknown> {
    let answer: JsonAnswer;
    try {
      answer = await requestJson({
        method,
        url: new URL(path, this.base),
        headers: { authorization: `Bearer ${this.token}` },
        ...(json === undefined ? {} : { json }),
        signal,
        timeoutMs: limitMs,
      });
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      throw unreachable(this.base, error);
    }
    if (answer.status >= 200 && answer.status < 300) return answer.body;
    const parsed = errorSchema.safeParse(answer.body);
    if (!parsed.success) throw new CliError(EXIT.failed, 'INTERNAL', `the coordinator answered with ${answer.status}`);
    const { code, message } = parsed.data.error;
    throw new CliError(EXIT.failed, code as ErrorCode, `${failure}: ${printable(message)}`);
  }
}

function changedNode(raw: unknown): ChangedNode {
  return { node: z.object({ node: nodeSchema }).parse(raw).node, raw };
}

async function readOperatorToken(layout: StateLayout): Promise<string> {
  const token = await readText(layout.operatorTokenFile, MAX_TOKEN_BYTES);
  if (token !== null) return token.trim();
  throw new CliError(EXIT.failed, 'NOT_FOUND', `${layout.operatorTokenFile} is not there`, {
    advice: 'The coordinator makes it when it starts: run `muser dev`, or name the right folder with --state.',
  });
}

function unreachable(base: string, error: unknown): CliError {
  const reason = error instanceof Error ? error.message : String(error);
  const what = error instanceof UnreachableError ? 'no coordinator' : 'no answer from the coordinator';
  return new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', `${what} at ${base}: ${printable(reason)}`, {
    // Its address is in the state folder, so a `muser dev` was started, and may live on without its coordinator.
    advice: 'Stop `muser dev` where it still runs, and start it again.',
    cause: error,
  });
}
