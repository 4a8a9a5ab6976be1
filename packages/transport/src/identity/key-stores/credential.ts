import { join } from 'node:path';
import { MuserError } from '@muser/protocol';
import { readSmallFile } from '@muser/service-kit';
import { asOurs } from '../as-ours.js';
import { parseSeed, type KeyStore } from './key-store.js';

/** What `LoadCredentialEncrypted=` of the unit calls it. */
const NAME = 'muser-identity';
const MAX_BYTES = 256;

/**
 * A credential that systemd has decrypted for this service alone, in memory that is never swapped. Its modes are systemd's
 * matter (an access list may stand in them), so they are not judged here.
 */
export class CredentialKeyStore implements KeyStore {
  readonly kind = 'credential';
  readonly place = `the systemd credential ${NAME}`;
  readonly #folder: string | undefined;

  /** @param folder $CREDENTIALS_DIRECTORY, which systemd sets; undefined outside of such a service */
  constructor(folder: string | undefined) {
    this.#folder = folder;
  }

  async read(): Promise<Uint8Array | null> {
    if (this.#folder === undefined || this.#folder === '') return null;
    const text = await asOurs(readSmallFile(join(this.#folder, NAME), MAX_BYTES));
    return text === null ? null : parseSeed(text, this.place);
  }

  create(): Promise<void> {
    const message = `${this.place} is not there: make it with systemd-creds (deploy/gb10/README.md)`;
    return Promise.reject(new MuserError('CONFIG_INVALID', message));
  }
}
