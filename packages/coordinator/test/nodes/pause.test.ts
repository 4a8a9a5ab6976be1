import { MuserError, type NodeState, type ProducerList } from '@muser/protocol';
import { describe, expect, it } from 'vitest';

import { launchCoordinator, type TestCoordinator } from '../support/coordinator.js';
import { has, StandInDecoder } from '../support/decoder.js';
import { StandInProducer } from '../support/producer.js';
import { until } from '../support/until.js';

const code = (body: unknown): string => (body as { error: { code: string } }).error.code;

async function launch(): Promise<{ coordinator: TestCoordinator; producer: StandInProducer; nodeId: string }> {
  const coordinator = await launchCoordinator();
  const { operator } = coordinator;
  const { nodeId, identity } = await operator.enroll('producer', { name: 'spark' });
  const producer = await StandInProducer.listen(identity);
  await operator.setAddresses(nodeId, [producer.target]);
  await operator.untilState(nodeId, 'healthy');
  return { coordinator, producer, nodeId };
}

async function connectDecoder({ operator, grpc }: TestCoordinator): Promise<StandInDecoder> {
  const { identity } = await operator.enroll('decoder');
  return new StandInDecoder(identity, grpc);
}

const stateIs =
  (state: NodeState) =>
  ({ producers }: ProducerList): boolean =>
    producers.length === 1 && producers[0]?.state === state;

const pathOf = (nodeId: string, order: 'pause' | 'resume'): string => `/api/nodes/${nodeId}/${order}`;

describe('POST /api/nodes/ID/pause and resume', () => {
  it('tell the producer, and answer when it is as ordered and known to be so', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const { operator } = coordinator;
    const paused = await operator.call('POST', pathOf(nodeId, 'pause'), { cancelRunning: true, deadlineMs: 4_000 });
    expect(paused.status).toBe(200);
    const shown = {
      nodeId,
      state: 'paused',
      modelLoaded: false,
      load: null,
      reason: null,
      model: { name: 'muse-nano' },
    };
    expect(paused.body).toMatchObject({ node: shown });
    expect(await operator.node(nodeId)).toMatchObject(shown);
    const resumed = await operator.call('POST', pathOf(nodeId, 'resume'));
    expect(resumed.body).toMatchObject({ node: { state: 'healthy', modelLoaded: true, load: { queueLength: 0 } } });
    expect(producer.orders).toEqual([
      { protocolVersion: 1, paused: true, cancelRunning: true, deadlineMs: 4_000 },
      { protocolVersion: 1, paused: false, cancelRunning: false, deadlineMs: 600_000 },
    ]);
  });

  it('tell the decoders at once not to use it, and leave them what runs there', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const decoder = await connectDecoder(coordinator);
    await decoder.list(has(nodeId));
    let finish: () => void = () => undefined;
    const finished = new Promise<void>((resolve) => (finish = resolve));
    const { onOrder } = producer;
    producer.onOrder = async (call) => {
      producer.send({ state: 'draining', activeTransfers: 1 });
      await finished;
      await onOrder(call);
    };
    const answer = coordinator.operator.call('POST', pathOf(nodeId, 'pause'));
    await decoder.list(stateIs('draining'));
    expect(await coordinator.operator.node(nodeId)).toMatchObject({ state: 'draining', modelLoaded: true });
    finish();
    expect((await answer).body).toMatchObject({ node: { state: 'paused' } });
    await decoder.list(stateIs('paused'));
    await coordinator.operator.call('POST', pathOf(nodeId, 'resume'));
    await decoder.list(stateIs('ready'));
  });

  it('show a producer that is paused as paused after a restart of the coordinator', async () => {
    const { coordinator, nodeId } = await launch();
    await coordinator.operator.call('POST', pathOf(nodeId, 'pause'));
    await coordinator.close();
    const { operator } = await launchCoordinator({ stateDir: coordinator.stateDir });
    expect(await operator.untilState(nodeId, 'paused')).toMatchObject({ modelLoaded: false });
    await operator.call('POST', pathOf(nodeId, 'resume'));
    expect((await operator.node(nodeId)).state).toBe('healthy');
  });

  it('find the address at which it answers', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const { operator } = coordinator;
    await operator.setAddresses(nodeId, ['127.0.0.1:1', producer.target]);
    expect((await operator.call('POST', pathOf(nodeId, 'pause'))).status).toBe(200);
    expect(producer.orders).toHaveLength(1);
  });

  it('say what is wrong, and give no order then', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const { operator } = coordinator;
    const decoder = await operator.enroll('decoder', { name: 'mac' });
    const revoked = await operator.enroll('producer', { name: 'old' });
    await operator.revoke(revoked.nodeId);
    const bare = await operator.enroll('producer', { name: 'bare' });
    const lost = await operator.enroll('producer', { name: 'lost', addresses: ['127.0.0.1:1'] });
    for (const [id, status, expected] of [
      [`n${'a'.repeat(26)}`, 404, 'NOT_FOUND'],
      [revoked.nodeId, 404, 'NOT_FOUND'],
      ['nope', 400, 'INVALID_REQUEST'],
      [decoder.nodeId, 400, 'INVALID_REQUEST'],
      [bare.nodeId, 502, 'PEER_UNREACHABLE'],
      [lost.nodeId, 502, 'PEER_UNREACHABLE'],
    ] as const) {
      for (const order of ['pause', 'resume'] as const) {
        const answer = await operator.call('POST', pathOf(id, order));
        expect([answer.status, code(answer.body)], id).toEqual([status, expected]);
      }
    }
    for (const body of [
      { deadlineMs: 0 },
      { deadlineMs: 3_600_001 },
      { deadlineMs: '1' },
      { cancelRunning: 1 },
      { x: 1 },
    ]) {
      expect((await operator.call('POST', pathOf(nodeId, 'pause'), body)).status, JSON.stringify(body)).toBe(400);
    }
    expect((await operator.call('POST', pathOf(nodeId, 'resume'), { cancelRunning: true })).status).toBe(400);
    expect(producer.orders).toEqual([]);
    expect((await operator.call('POST', pathOf(nodeId, 'pause'), undefined, 'wrong')).status).toBe(401);
  });

  it('pass on why the producer could not do it', async () => {
    const { coordinator, producer, nodeId } = await launch();
    producer.onOrder = () => Promise.reject(new MuserError('DEADLINE_EXCEEDED', '2 transfers still run'));
    const late = await coordinator.operator.call('POST', pathOf(nodeId, 'pause'));
    expect([late.status, late.body]).toMatchObject([504, { error: { message: '2 transfers still run' } }]);
    producer.onOrder = () => Promise.reject(new MuserError('MODEL_LOAD_FAILED', 'the file is gone'));
    const failed = await coordinator.operator.call('POST', pathOf(nodeId, 'resume'));
    expect([failed.status, code(failed.body)]).toEqual([500, 'MODEL_LOAD_FAILED']);
  });

  it('give up a producer that dies meanwhile', async () => {
    const { coordinator, producer, nodeId } = await launch();
    producer.onOrder = (call) => new Promise((resolve) => call.signal.addEventListener('abort', () => resolve()));
    const answer = coordinator.operator.call('POST', pathOf(nodeId, 'pause'));
    await until(
      () => producer.orders.length,
      (count) => count === 1,
    );
    await producer.close();
    const { status, body } = await answer;
    expect([status, code(body)]).toEqual([502, 'PEER_UNREACHABLE']);
  });

  it('end the wait at the producer when the operator leaves, or the coordinator closes', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const { operator } = coordinator;
    let waiting = 0;
    producer.onOrder = async (call) => {
      waiting += 1;
      await new Promise<void>((resolve) => call.signal.addEventListener('abort', () => resolve()));
      waiting -= 1;
    };
    const leave = new AbortController();
    const left = fetch(operator.url + pathOf(nodeId, 'pause'), {
      method: 'POST',
      headers: { authorization: `Bearer ${operator.token}` },
      signal: leave.signal,
    });
    const stays = operator.call('POST', pathOf(nodeId, 'pause'));
    await until(
      () => waiting,
      (count) => count === 2,
    );
    leave.abort();
    await expect(left).rejects.toThrow();
    await until(
      () => waiting,
      (count) => count === 1,
    );
    await coordinator.close();
    const { status, body } = await stays;
    expect([status, code(body)]).toEqual([503, 'UNAVAILABLE']);
    await until(
      () => waiting,
      (count) => count === 0,
    );
  });
});

describe('a producer that is idle', () => {
  it('and has unloaded its model is healthy, and shown as unloaded', async () => {
    const { coordinator, producer, nodeId } = await launch();
    const decoder = await connectDecoder(coordinator);
    await decoder.list(has(nodeId));
    producer.send({ unloaded: true });
    const node = await until(
      () => coordinator.operator.node(nodeId),
      ({ modelLoaded }) => modelLoaded === false,
    );
    expect(node).toMatchObject({ state: 'healthy', load: { activeTransfers: 0 } });
    await decoder.list(has(nodeId));
  });
});
