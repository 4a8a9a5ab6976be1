import { MuserError, nodeIdOf } from '@muser/protocol';
import { createIdentity, installIdentity, type Identity } from '@muser/transport';

import type { RegistryStore } from '../registry/store.js';
import { Authority } from './authority.js';
import { verifyRequest } from './enrollment-request.js';

export interface CoordinatorKeys {
  authority: Authority;
  /** The coordinator as a node among its nodes. Its signing key signs the tickets. */
  identity: Identity;
}

export interface OpenKeysOptions {
  authorityFolder: string;
  identityFolder: string;
  store: RegistryStore;
  nowMs: number;
}

/**
 * The keys that every node of this registry trusts: made at the first start, the same ones ever after. The
 * coordinator's own certificate is issued anew at each start.
 *
 * @throws MuserError CONFIG_INVALID when a registry is there but its keys are not, because with new ones every node
 *   would have to be enrolled again
 */
export async function openKeys(options: OpenKeysOptions): Promise<CoordinatorKeys> {
  const { authorityFolder, identityFolder, store, nowMs } = options;
  const owner = await store.owner();
  const found = await Authority.load(authorityFolder);
  if (owner !== null && found?.sha256 !== owner.authoritySha256) throw lost(authorityFolder, 'the CA');
  const authority = found ?? (await Authority.create(authorityFolder, nowMs));
  const request = await createIdentity(identityFolder, 'coordinator');
  const { nodeId, signingPublicKey, tlsKey } = await verifyRequest(request);
  if (owner !== null && owner.coordinatorId !== nodeId) throw lost(identityFolder, "the coordinator's keys");
  const { certificatePem } = await authority.issue({ role: 'coordinator', nodeId, tlsKey, nowMs });
  const identity = await installIdentity(identityFolder, {
    nodeId: nodeIdOf(signingPublicKey),
    certificatePem,
    caPem: authority.certificatePem,
    coordinatorPublicKey: Buffer.from(signingPublicKey).toString('base64'),
  });
  await store.bind({ coordinatorId: nodeId, authoritySha256: authority.sha256 }, nowMs);
  return { authority, identity };
}

function lost(folder: string, what: string): MuserError {
  return new MuserError(
    'CONFIG_INVALID',
    `the registry's nodes trust other keys than those in ${folder}: restore ${what} from a backup, ` +
      'or move the whole state folder away to start anew',
  );
}
