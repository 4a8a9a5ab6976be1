import { generateSigningKey, nodeIdOf } from '@muser/protocol';
import { beforeEach, describe, expect, it } from 'vitest';

import type { Enrollment, RegistryStore } from '../../src/registry/store.js';

export function enrollmentOf(change: Partial<Enrollment> = {}): Enrollment {
  const { publicKey } = generateSigningKey();
  return {
    nodeId: nodeIdOf(publicKey),
    name: 'spark',
    role: 'producer',
    addresses: ['10.0.0.2:7000'],
    signingPublicKey: publicKey,
    certificateExpiresAtMs: 9_000,
    certificateSerial: 'ab01',
    ...change,
  };
}

/** What every registry store must do. `create` gives a new, empty one. */
export function testRegistryStore(name: string, create: () => Promise<RegistryStore>): void {
  describe(`${name} as a registry`, () => {
    let store: RegistryStore;
    beforeEach(async () => {
      store = await create();
    });
    const actions = async (): Promise<string[]> => (await store.audit()).map(({ action }) => action);

    it('is empty in the beginning', async () => {
      expect(await store.list()).toEqual([]);
      expect(await store.audit()).toEqual([]);
      expect(await store.owner()).toBeNull();
    });

    it('belongs to one owner for good', async () => {
      const owner = { coordinatorId: 'n1', authoritySha256: 'aa' };
      await store.bind(owner, 1);
      await store.bind(owner, 2);
      expect(await store.owner()).toEqual(owner);
      expect(await actions()).toEqual(['registry-bound']);
      for (const other of [
        { ...owner, coordinatorId: 'n2' },
        { ...owner, authoritySha256: 'bb' },
      ]) {
        await expect(store.bind(other, 3)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
      }
      expect(await store.owner()).toEqual(owner);
    });

    it('keeps the end of a newer certificate, and that it was issued', async () => {
      const { nodeId } = await store.enroll(enrollmentOf(), 5);
      const renewal = { certificateExpiresAtMs: 99_000, certificateSerial: 'ab02' };
      const record = await store.renewCertificate(nodeId, renewal, 6);
      expect(record).toMatchObject({ name: 'spark', certificateExpiresAtMs: 99_000, enrolledAtMs: 5 });
      expect(await store.list()).toEqual([record]);
      expect((await store.audit()).at(-1)).toMatchObject({
        action: 'certificate-renewed',
        atMs: 6,
        details: { certificateSerial: 'ab02' },
      });
      await store.revoke(nodeId, 7);
      for (const id of [nodeId, 'n0']) {
        await expect(store.renewCertificate(id, renewal, 8)).rejects.toMatchObject({ code: 'NOT_FOUND' });
      }
    });

    it('keeps what was enrolled, in that order', async () => {
      const producer = enrollmentOf({ name: 'Spärk 1' });
      const decoder = enrollmentOf({ role: 'decoder', addresses: [] });
      const record = await store.enroll(producer, 5);
      await store.enroll(decoder, 6);
      const { certificateSerial, ...kept } = producer;
      expect(certificateSerial).not.toBe('');
      expect(record).toEqual({ ...kept, enrolledAtMs: 5, revokedAtMs: null });
      expect((await store.list()).map(({ nodeId }) => nodeId)).toEqual([producer.nodeId, decoder.nodeId]);
      expect((await store.list())[0]).toEqual(record);
    });

    it('takes a known key for the same node', async () => {
      const first = enrollmentOf();
      await store.enroll(first, 5);
      const again = { ...first, name: 'renamed', certificateExpiresAtMs: 10_000, addresses: ['a:1', 'b:2'] };
      const record = await store.enroll(again, 7);
      expect(record).toMatchObject({ name: 'renamed', addresses: ['a:1', 'b:2'], enrolledAtMs: 5 });
      expect(record.certificateExpiresAtMs).toBe(10_000);
      expect(await store.enroll({ ...again, addresses: [] }, 8)).toMatchObject({ addresses: ['a:1', 'b:2'] });
      expect(await store.list()).toHaveLength(1);
    });

    it('does not enroll a known key in another role', async () => {
      const producer = enrollmentOf();
      await store.enroll(producer, 5);
      await expect(store.enroll({ ...producer, role: 'decoder' }, 6)).rejects.toMatchObject({ code: 'ENROLL_REFUSED' });
      expect((await store.list())[0]?.role).toBe('producer');
      expect(await actions()).toEqual(['node-enrolled']);
    });

    it('changes name and addresses, each alone', async () => {
      const { nodeId } = await store.enroll(enrollmentOf(), 5);
      expect(await store.change(nodeId, { name: 'new' }, 6)).toMatchObject({
        name: 'new',
        addresses: ['10.0.0.2:7000'],
      });
      expect(await store.change(nodeId, { addresses: ['x:1'] }, 7)).toMatchObject({ name: 'new', addresses: ['x:1'] });
      expect(await store.change(nodeId, { addresses: [] }, 8)).toMatchObject({ addresses: [] });
      expect((await store.list())[0]).toMatchObject({ name: 'new', addresses: [] });
    });

    it('revokes for good', async () => {
      const enrollment = enrollmentOf();
      const { nodeId } = await store.enroll(enrollment, 5);
      expect((await store.revoke(nodeId, 6)).revokedAtMs).toBe(6);
      expect((await store.revoke(nodeId, 7)).revokedAtMs).toBe(6);
      await expect(store.change(nodeId, { name: 'x' }, 8)).rejects.toMatchObject({ code: 'NOT_FOUND' });
      await expect(store.enroll(enrollment, 9)).rejects.toMatchObject({ code: 'ENROLL_REFUSED' });
      expect(await store.list()).toMatchObject([{ nodeId, name: 'spark', revokedAtMs: 6 }]);
      expect(await actions()).toEqual(['node-enrolled', 'node-revoked']);
    });

    it('does not know what was never enrolled', async () => {
      const { nodeId } = enrollmentOf();
      await expect(store.change(nodeId, {}, 1)).rejects.toMatchObject({ code: 'NOT_FOUND' });
      await expect(store.revoke(nodeId, 1)).rejects.toMatchObject({ code: 'NOT_FOUND' });
    });

    it('writes an audit entry for each change, numbered without gaps', async () => {
      const enrollment = enrollmentOf();
      const { nodeId } = await store.enroll(enrollment, 5);
      await expect(store.enroll({ ...enrollment, role: 'decoder' }, 6)).rejects.toThrow();
      await store.change(nodeId, { name: 'new' }, 7);
      await store.enroll(enrollment, 8);
      await store.revoke(nodeId, 9);
      expect(await store.audit()).toEqual([
        {
          sequence: 1,
          atMs: 5,
          action: 'node-enrolled',
          nodeId,
          details: {
            name: 'spark',
            role: 'producer',
            addresses: ['10.0.0.2:7000'],
            certificateSerial: 'ab01',
            again: false,
          },
        },
        { sequence: 2, atMs: 7, action: 'node-changed', nodeId, details: { name: 'new' } },
        expect.objectContaining({ sequence: 3, atMs: 8, action: 'node-enrolled' }),
        { sequence: 4, atMs: 9, action: 'node-revoked', nodeId, details: { name: 'spark', role: 'producer' } },
      ]);
    });

    it('notes orders without changing anything, and none to a node that is not there', async () => {
      const { nodeId } = await store.enroll(enrollmentOf(), 5);
      const before = await store.list();
      await store.note(nodeId, 'node-paused', 6);
      await store.note(nodeId, 'node-resumed', 7);
      expect(await store.list()).toEqual(before);
      expect((await store.audit()).slice(1)).toEqual([
        { sequence: 2, atMs: 6, action: 'node-paused', nodeId, details: { name: 'spark' } },
        { sequence: 3, atMs: 7, action: 'node-resumed', nodeId, details: { name: 'spark' } },
      ]);
      await store.revoke(nodeId, 8);
      await expect(store.note(nodeId, 'node-paused', 9)).rejects.toMatchObject({ code: 'NOT_FOUND' });
      await expect(store.note(enrollmentOf().nodeId, 'node-paused', 9)).rejects.toMatchObject({ code: 'NOT_FOUND' });
      expect(await store.audit()).toHaveLength(4);
    });

    it('takes changes that come at the same time one after another', async () => {
      const enrollments = Array.from({ length: 20 }, () => enrollmentOf());
      await Promise.all(enrollments.map((enrollment) => store.enroll(enrollment, 1)));
      await Promise.all(enrollments.map(({ nodeId }) => store.revoke(nodeId, 2)));
      expect((await store.list()).every(({ revokedAtMs }) => revokedAtMs === 2)).toBe(true);
      expect((await store.audit()).map(({ sequence }) => sequence)).toEqual(
        Array.from({ length: 40 }, (_, i) => i + 1),
      );
    });

    it('does not hand out what would change its content', async () => {
      const enrollment = enrollmentOf();
      await store.enroll(enrollment, 1);
      (enrollment.addresses as string[]).push('evil:1');
      ((await store.list())[0]?.addresses as string[]).push('evil:2');
      enrollment.signingPublicKey.fill(0);
      const [record] = await store.list();
      expect(record?.addresses).toEqual(['10.0.0.2:7000']);
      expect(record?.signingPublicKey).not.toEqual(new Uint8Array(32));
    });
  });
}
