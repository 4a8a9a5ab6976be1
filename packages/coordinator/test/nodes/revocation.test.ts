// What producers are told of revoked nodes, over real gRPC and TLS.
import { MAX_REVOKED_NODES, MuserError, nodeIdOf } from '@muser/protocol';
import { describe, expect, it } from 'vitest';

import type { NodeDirectory } from '../../src/nodes/directory.js';
import type { NodeEntry } from '../../src/nodes/node-state.js';
import { revokedNodes } from '../../src/nodes/revoked-list.js';
import { launchCoordinator, type TestCoordinator } from '../support/coordinator.js';
import { StandInProducer } from '../support/producer.js';
import { until } from '../support/until.js';

async function withProducer({ operator }: TestCoordinator) {
  const { nodeId, identity } = await operator.enroll('producer');
  const producer = await StandInProducer.listen(identity);
  await operator.setAddresses(nodeId, [producer.target]);
  await operator.untilState(nodeId, 'healthy');
  return { nodeId, identity, producer };
}

const told = (producer: StandInProducer): Promise<string[]> =>
  until(
    () => Promise.resolve(producer.revoked.at(-1)?.nodeIds ?? []),
    (nodeIds) => nodeIds.length > 0,
  );

describe('a producer', () => {
  it('is told at once when a node is revoked, and when it connects', async () => {
    const coordinator = await launchCoordinator();
    const { producer } = await withProducer(coordinator);
    await until(
      () => Promise.resolve(producer.revoked.length),
      (count) => count > 0,
    );
    expect(producer.revoked[0]).toMatchObject({ version: 0, nodeIds: [] });
    const { nodeId } = await coordinator.operator.enroll('decoder');
    await coordinator.operator.revoke(nodeId);
    expect(await told(producer)).toEqual([nodeId]);
    const later = await withProducer(coordinator);
    expect(await told(later.producer)).toEqual([nodeId]);
    expect(later.producer.revoked.at(-1)).toMatchObject({ version: 1 });
  });

  // promise: A list of revoked nodes that is lost on its way to a producer is sent again within 10 seconds.
  it('that did not take the list is dialled anew and told again', async () => {
    const coordinator = await launchCoordinator();
    const { producer, nodeId: producerId } = await withProducer(coordinator);
    const { nodeId } = await coordinator.operator.enroll('decoder');
    let refusals = 0;
    producer.onRevoked = ({ nodeIds }) => {
      if (nodeIds.length === 0 || refusals > 0) return;
      refusals += 1;
      throw new MuserError('UNAVAILABLE', 'not now');
    };
    await coordinator.operator.revoke(nodeId);
    expect(await told(producer)).toEqual([nodeId]);
    expect(refusals).toBe(1);
    await coordinator.operator.untilState(producerId, 'healthy');
  });

  it('that cannot be told is not given to decoders', async () => {
    const coordinator = await launchCoordinator();
    const { producer, nodeId } = await withProducer(coordinator);
    producer.onRevoked = () => {
      throw new MuserError('PROTOCOL_VERSION', 'another version');
    };
    const other = await coordinator.operator.enroll('decoder');
    await coordinator.operator.revoke(other.nodeId);
    expect(await coordinator.operator.untilState(nodeId, 'error')).toMatchObject({
      reason: { code: 'PROTOCOL_VERSION' },
    });
  });
});

describe('the list of revoked nodes', () => {
  const nodeId = (number: number): string => nodeIdOf(Buffer.from([number >> 8, number & 255]));
  const entry = (number: number, revokedAtMs: number | null, certificateExpiresAtMs: number): NodeEntry =>
    ({ record: { nodeId: nodeId(number), revokedAtMs, certificateExpiresAtMs } }) as NodeEntry;
  const listOf = (entries: NodeEntry[], nowMs: number) =>
    revokedNodes({ list: () => entries } as unknown as NodeDirectory, nowMs);

  it('leaves out those whose certificates have ended, and counts them all the same', () => {
    const entries = [entry(1, 10, 1_000), entry(2, null, 1_000), entry(3, 5, 2_000_000)];
    expect(listOf(entries, 0)).toEqual({ protocolVersion: 1, version: 2, nodeIds: [nodeId(3), nodeId(1)] });
    expect(listOf(entries, 1_000 + 5 * 60_000)).toEqual({ protocolVersion: 1, version: 2, nodeIds: [nodeId(3)] });
  });

  it('keeps the latest when there are too many', () => {
    const entries = Array.from({ length: MAX_REVOKED_NODES + 2 }, (_, index) => entry(index, index, 1_000));
    const { nodeIds, version } = listOf(entries, 0);
    expect(version).toBe(MAX_REVOKED_NODES + 2);
    expect([nodeIds.length, nodeIds[0], nodeIds.at(-1)]).toEqual([
      MAX_REVOKED_NODES,
      nodeId(2),
      nodeId(MAX_REVOKED_NODES + 1),
    ]);
  });
});
