import { CredentialKeyStore } from './credential.js';
import { FileKeyStore } from './file.js';
import { KeychainKeyStore } from './keychain.js';
import type { KeyStore, KeyStoreKind } from './key-store.js';

/** @param env of the process: where systemd puts its credentials */
export function keyStoreOf(kind: KeyStoreKind, dir: string, env: NodeJS.ProcessEnv): KeyStore {
  switch (kind) {
    case 'file':
      return new FileKeyStore(dir);
    case 'credential':
      return new CredentialKeyStore(env['CREDENTIALS_DIRECTORY']);
    case 'keychain':
      return new KeychainKeyStore(dir);
  }
}
