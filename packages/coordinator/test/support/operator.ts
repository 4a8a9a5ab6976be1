import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { createIdentity, installIdentity, type Identity, type IdentityBundle } from '@muser/transport';
import { expect } from 'vitest';

import type { NodeView } from '../../src/http/views.js';
import { temporaryFolder } from './folders.js';
import { until } from './until.js';

export interface Answer {
  status: number;
  headers: Headers;
  body: unknown;
}

export interface EnrolledNode {
  nodeId: string;
  identity: Identity;
  identityFolder: string;
}

/** The operator at a coordinator's HTTP API. */
export class Operator {
  constructor(
    readonly url: string,
    readonly token: string,
  ) {}

  static async at(coordinator: { http: string }, stateDir: string): Promise<Operator> {
    return new Operator(coordinator.http, (await readFile(join(stateDir, 'operator.token'), 'utf8')).trim());
  }

  async call(method: string, path: string, body?: unknown, token = this.token): Promise<Answer> {
    const response = await fetch(this.url + path, {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    return { status: response.status, headers: response.headers, body: await response.json() };
  }

  async nodes(): Promise<NodeView[]> {
    const { body } = await this.call('GET', '/api/nodes');
    return (body as { nodes: NodeView[] }).nodes;
  }

  async node(nodeId: string): Promise<NodeView> {
    const node = (await this.nodes()).find((candidate) => candidate.nodeId === nodeId);
    if (node === undefined) throw new Error(`no node ${nodeId}`);
    return node;
  }

  untilState(nodeId: string, state: string): Promise<NodeView> {
    return until(
      () => this.node(nodeId),
      (node) => node.state === state,
    );
  }

  /** The whole way of a new node: keys, request, enrollment, installed identity. */
  async enroll(role: 'producer' | 'decoder', options: { name?: string; addresses?: string[]; folder?: string } = {}) {
    const identityFolder = options.folder ?? (await temporaryFolder());
    const request = await createIdentity(identityFolder, role);
    const { name = role, addresses = [] } = options;
    const { status, body } = await this.call('POST', '/api/nodes', { name, role, addresses, request });
    expect(status, JSON.stringify(body)).toBe(200);
    const { bundle } = body as { bundle: IdentityBundle };
    const identity = await installIdentity(identityFolder, bundle);
    return { nodeId: identity.nodeId, identity, identityFolder } satisfies EnrolledNode;
  }

  async setAddresses(nodeId: string, addresses: string[]): Promise<void> {
    expect((await this.call('PATCH', `/api/nodes/${nodeId}`, { addresses })).status).toBe(200);
  }

  async revoke(nodeId: string): Promise<void> {
    expect((await this.call('DELETE', `/api/nodes/${nodeId}`)).status).toBe(200);
  }
}
