import { join } from 'node:path';

import { MAX_PRODUCERS } from '@muser/protocol';
import { createLogger } from '@muser/service-kit';
import { createIdentity } from '@muser/transport';
import { expect, it, onTestFinished } from 'vitest';

import { openKeys } from '../src/ca/own-identity.js';
import { EnrollmentOffice } from '../src/enrollment.js';
import { NodeDirectory } from '../src/nodes/directory.js';
import { SqliteStore } from '../src/registry/sqlite-store.js';
import { enrollmentOf } from './registry/compliance.js';
import { temporaryFolder } from './support/folders.js';
import { ManualClock } from './support/manual-clock.js';

it('takes as many producers as a list can hold, not counting the revoked ones', async () => {
  const stateDir = await temporaryFolder();
  const clock = new ManualClock();
  const store = SqliteStore.open(join(stateDir, 'registry.sqlite'));
  onTestFinished(() => store.close());
  const keys = await openKeys({
    authorityFolder: join(stateDir, 'ca'),
    identityFolder: join(stateDir, 'identity'),
    store,
    nowMs: clock.now(),
  });
  const directory = await NodeDirectory.load(store, clock);
  const office = new EnrollmentOffice({ directory, keys, clock, logger: createLogger('test', 'silent') });
  const enrollments = Array.from({ length: MAX_PRODUCERS }, () => enrollmentOf());
  for (const enrollment of enrollments) await directory.enroll(enrollment);
  const request = await createIdentity(await temporaryFolder(), 'producer');
  const order = { name: 'one more', role: 'producer', addresses: [], request } as const;
  await expect(office.enroll(order)).rejects.toMatchObject({ code: 'RESOURCE_EXHAUSTED' });
  await directory.revoke(enrollments[0]?.nodeId ?? '');
  const { node } = await office.enroll(order);
  // Who is in already may always renew.
  expect((await office.enroll(order)).node.record.nodeId).toBe(node.record.nodeId);
});
