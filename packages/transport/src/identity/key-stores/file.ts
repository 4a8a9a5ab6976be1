import { join } from 'node:path';
import { createFileOnce, readPrivateFile } from '@muser/service-kit';
import { asOurs } from '../as-ours.js';
import { parseSeed, type KeyStore } from './key-store.js';

const FILE = 'identity.key';

/** A file of mode 0600 in the identity's folder: what there is when nothing better is. */
export class FileKeyStore implements KeyStore {
  readonly kind = 'file';
  readonly place: string;

  /** @param dir the identity's folder, of mode 0700 */
  constructor(dir: string) {
    this.place = join(dir, FILE);
  }

  async read(): Promise<Uint8Array | null> {
    const text = await asOurs(readPrivateFile(this.place));
    return text === null ? null : parseSeed(text, this.place);
  }

  async create(seed: Uint8Array): Promise<void> {
    await createFileOnce(this.place, `${Buffer.from(seed).toString('base64')}\n`);
  }
}
