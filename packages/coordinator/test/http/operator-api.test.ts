import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';

import { createIdentity, type IdentityBundle, type IdentityRequest } from '@muser/transport';
import { describe, expect, it } from 'vitest';

import { launchCoordinator } from '../support/coordinator.js';
import { temporaryFolder } from '../support/folders.js';
import { ManualClock } from '../support/manual-clock.js';

const code = (body: unknown): string => (body as { error: { code: string } }).error.code;

describe('access', () => {
  // promise: Everything of the coordinator's HTTP interface but its health needs the operator's token.
  it('is open for /health and needs the token for everything else', async () => {
    const { operator, nodeId } = await launchCoordinator();
    const health = await fetch(`${operator.url}/health`);
    expect([health.status, await health.json()]).toEqual([200, { status: 'ok', nodeId }]);
    for (const authorization of [undefined, '', 'Bearer', 'Bearer ', `Basic ${operator.token}`, operator.token]) {
      const answer = await fetch(
        `${operator.url}/api/nodes`,
        authorization === undefined ? {} : { headers: { authorization } },
      );
      expect(answer.status, authorization).toBe(401);
    }
  });

  it('answers whatever is wrong with a request in one form', async () => {
    const { operator } = await launchCoordinator();
    const post = (body: string, type = 'application/json') =>
      fetch(`${operator.url}/api/nodes`, {
        method: 'POST',
        body,
        headers: { authorization: `Bearer ${operator.token}`, 'content-type': type },
      });
    for (const [response, status, expected] of [
      [await fetch(`${operator.url}/api/nodes`), 401, 'UNAUTHENTICATED'],
      [await fetch(`${operator.url}/nowhere`), 404, 'NOT_FOUND'],
      [await post('{"name":hunter2'), 400, 'INVALID_REQUEST'],
      [await post('{}'), 400, 'INVALID_REQUEST'],
      [await post('hunter2', 'application/hunter2'), 400, 'INVALID_REQUEST'],
      [await post(`"${'x'.repeat(70_000)}"`), 413, 'MESSAGE_TOO_LARGE'],
    ] as const) {
      const body = await response.text();
      expect(body).not.toContain('hunter2');
      const form = { code: expected, message: expect.any(String) as string, retryable: false, details: {} };
      expect([response.status, JSON.parse(body)]).toEqual([status, { error: form }]);
    }
  });

  it('takes the whole token only, and wants it for every method', async () => {
    const { operator } = await launchCoordinator();
    const wrong = [operator.token.slice(1), `${operator.token}0`, operator.token.toUpperCase()];
    for (const token of wrong) {
      const { status, body } = await operator.call('GET', '/api/nodes', undefined, token);
      expect([status, code(body)]).toEqual([401, 'UNAUTHENTICATED']);
    }
    for (const [method, path] of [
      ['POST', '/api/nodes'],
      ['PATCH', '/api/nodes/x'],
      ['DELETE', '/api/nodes/x'],
    ] as const) {
      expect((await fetch(operator.url + path, { method })).status).toBe(401);
    }
    expect((await operator.call('GET', '/api/nodes')).status).toBe(200);
    expect((await operator.call('GET', '/api/other')).status).toBe(404);
  });

  it('answers 429 after too many failures, never to the right token, and forgets after a minute', async () => {
    const clock = new ManualClock();
    const { operator } = await launchCoordinator({ clock });
    const attempt = () => operator.call('GET', '/api/nodes', undefined, randomBytes(32).toString('hex'));
    for (let failure = 0; failure < 10; failure += 1) expect((await attempt()).status).toBe(401);
    clock.advance(20_000);
    const { status, headers, body } = await attempt();
    expect([status, headers.get('retry-after'), code(body)]).toEqual([429, '40', 'RESOURCE_EXHAUSTED']);
    expect((await operator.call('GET', '/api/nodes')).status).toBe(200);
    clock.advance(40_000);
    expect((await attempt()).status).toBe(401);
  });

  it('keeps its token in a file for its owner alone', async () => {
    const { stateDir, operator } = await launchCoordinator();
    expect((await stat(join(stateDir, 'operator.token'))).mode & 0o777).toBe(0o600);
    expect(operator.token).toMatch(/^[0-9a-f]{64}$/);
  });

  it('is closed to web pages, with the right token too', async () => {
    const { operator } = await launchCoordinator();
    const { hostname, port } = new URL(operator.url);
    const send = async (headers: Record<string, string>): Promise<number | undefined> => {
      const call = httpRequest({ hostname, port, path: '/api/nodes', headers, setHost: false, agent: false });
      call.end();
      const [response] = (await once(call, 'response')) as [IncomingMessage];
      response.resume();
      return response.statusCode;
    };
    const authorization = `Bearer ${operator.token}`;
    const host = `${hostname}:${port}`;
    expect(await send({ authorization, host })).toBe(200);
    expect(await send({ authorization, host: `rebound.example:${port}` })).toBe(403);
    expect(await send({ authorization, host, origin: 'https://evil.example' })).toBe(403);
  });
});

describe('POST /api/nodes', () => {
  async function order(change: Record<string, unknown> = {}) {
    const request = await createIdentity(await temporaryFolder(), 'producer');
    return { name: 'spark', role: 'producer', addresses: ['127.0.0.1:7000'], request, ...change };
  }

  it('takes a node for the same one when it comes again, with a new certificate', async () => {
    const { operator, nodeId: coordinatorId } = await launchCoordinator();
    const body = await order();
    const first = (await operator.call('POST', '/api/nodes', body)).body as { bundle: IdentityBundle };
    const again = (await operator.call('POST', '/api/nodes', { ...body, name: 'new', addresses: [] })).body as {
      node: { nodeId: string };
      bundle: IdentityBundle;
    };
    expect(again.node).toMatchObject({ nodeId: first.bundle.nodeId, name: 'new', addresses: ['127.0.0.1:7000'] });
    expect(again.bundle).toEqual({ ...first.bundle, certificatePem: again.bundle.certificatePem });
    expect(again.bundle.certificatePem).not.toBe(first.bundle.certificatePem);
    expect(again.bundle.nodeId).not.toBe(coordinatorId);
    expect(await operator.nodes()).toHaveLength(1);
  });

  it('names the field that is wrong and does not repeat what it holds', async () => {
    const { operator } = await launchCoordinator();
    const wrong: [string, Record<string, unknown>][] = [
      ['name', { name: '' }],
      ['name', { name: '\u001b[31mred' }],
      ['name', { name: '-rf' }],
      ['name', { name: 'ä'.repeat(65) }],
      ['role', { role: 'coordinator' }],
      ['role', { role: undefined }],
      ['addresses', { addresses: '127.0.0.1:1' }],
      ['addresses.0', { addresses: ['hunter2'] }],
      ['addresses.0', { addresses: ['127.0.0.1:0'] }],
      ['addresses.0', { addresses: ['127.0.0.1:65536'] }],
      ['addresses.1', { addresses: ['spark.local:1', 'unix:/tmp/hunter2'] }],
      ['addresses', { addresses: ['a:1', 'a:1'] }],
      ['addresses', { addresses: Array.from({ length: 17 }, (_, port) => `a:${port + 1}`) }],
      ['request', { request: 'hunter2' }],
      ['request.csrPem', { request: { role: 'producer', signingPublicKey: '', csrPem: 'x'.repeat(9_000), proof: '' } }],
      ['(body)', { hunter2: true }],
    ];
    for (const [field, change] of wrong) {
      const { status, body } = await operator.call('POST', '/api/nodes', await order(change));
      const { error } = body as { error: { code: string; message: string } };
      expect([status, error.code], JSON.stringify(change)).toEqual([400, 'INVALID_REQUEST']);
      expect(error.message).toContain(`${field}: `);
      if (field !== '(body)') expect(error.message).not.toContain('hunter2');
    }
    expect(await operator.nodes()).toEqual([]);
  });

  it('refuses what its keys do not prove', async () => {
    const { operator } = await launchCoordinator();
    const good = await order();
    const other = await order();
    const refused = [
      await order({ role: 'decoder' }),
      { ...good, request: { ...good.request, proof: other.request.proof } },
      { ...good, request: { ...good.request, csrPem: other.request.csrPem } },
      { ...good, request: { ...good.request, csrPem: 'hunter2' } },
    ];
    for (const body of refused) {
      const answer = await operator.call('POST', '/api/nodes', body);
      expect([answer.status, code(answer.body)]).toEqual([403, 'ENROLL_REFUSED']);
    }
    expect(await operator.nodes()).toEqual([]);
  });

  it('refuses a body that is no JSON, or too long', async () => {
    const { operator } = await launchCoordinator();
    const post = (body: string) =>
      fetch(`${operator.url}/api/nodes`, {
        method: 'POST',
        body,
        headers: { authorization: `Bearer ${operator.token}`, 'content-type': 'application/json' },
      });
    expect((await post('{')).status).toBe(400);
    expect((await post('')).status).toBe(400);
    expect((await post(JSON.stringify('x'.repeat(70_000)))).status).toBe(413);
  });
});

describe('a node', () => {
  // fault: discovery-finds-nothing
  it('can be renamed and moved', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId } = await operator.enroll('producer');
    const path = `/api/nodes/${nodeId}`;
    expect((await operator.call('PATCH', path, { name: 'new name' })).body).toMatchObject({
      node: { name: 'new name' },
    });
    await operator.call('PATCH', path, { addresses: ['[::1]:7000'] });
    expect(await operator.node(nodeId)).toMatchObject({ name: 'new name', addresses: ['[::1]:7000'] });
    expect((await operator.call('PATCH', path, { role: 'decoder' })).status).toBe(400);
    expect((await operator.call('PATCH', path, { name: 'a\nb' })).status).toBe(400);
    expect((await operator.call('PATCH', '/api/nodes/nope', {})).status).toBe(400);
    expect((await operator.call('PATCH', `/api/nodes/n${'a'.repeat(26)}`, {})).status).toBe(404);
  });

  it('stays revoked', async () => {
    const { operator } = await launchCoordinator();
    const folder = await temporaryFolder();
    const { nodeId } = await operator.enroll('decoder', { folder });
    const path = `/api/nodes/${nodeId}`;
    expect((await operator.call('DELETE', path)).body).toMatchObject({ node: { state: 'revoked' } });
    expect((await operator.call('DELETE', path)).status).toBe(200);
    expect((await operator.call('PATCH', path, { name: 'x' })).status).toBe(404);
    const request: IdentityRequest = await createIdentity(folder, 'decoder');
    const again = await operator.call('POST', '/api/nodes', { name: 'x', role: 'decoder', addresses: [], request });
    expect([again.status, code(again.body)]).toEqual([403, 'ENROLL_REFUSED']);
    expect((await operator.call('DELETE', `/api/nodes/n${'a'.repeat(26)}`)).status).toBe(404);
  });

  it('is shown with times, certificate and no keys', async () => {
    const { operator } = await launchCoordinator();
    const { nodeId } = await operator.enroll('producer', { name: 'spark', addresses: ['127.0.0.1:1'] });
    const iso = expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/) as string;
    const node = await operator.node(nodeId);
    expect({ ...node, state: '', reason: null }).toEqual({
      nodeId,
      name: 'spark',
      role: 'producer',
      addresses: ['127.0.0.1:1'],
      state: '',
      since: iso,
      lastSeen: null,
      reason: null,
      load: null,
      model: null,
      backend: null,
      modelLoaded: null,
      version: null,
      certificateExpires: iso,
    });
  });
});
