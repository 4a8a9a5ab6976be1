import { SEED_BYTES, MuserError } from '@muser/protocol';

export type KeyStoreKind = 'file' | 'credential' | 'keychain';

export const KEY_STORE_KINDS: readonly KeyStoreKind[] = ['file', 'credential', 'keychain'];

/** Where a node's identity key is kept. */
export interface KeyStore {
  readonly kind: KeyStoreKind;
  /** For people: `the systemd credential muser-identity`. */
  readonly place: string;
  /**
   * The key's seed, 32 bytes; null when there is none.
   *
   * @throws MuserError CONFIG_INVALID when it is damaged, open to others, or the store cannot be asked
   */
  read(): Promise<Uint8Array | null>;
  /**
   * Keeps a new seed. One that is there already stays, so read afterwards.
   *
   * @throws MuserError CONFIG_INVALID for a store that only an operator can fill, UNAVAILABLE when it refuses
   */
  create(seed: Uint8Array): Promise<void>;
}

/** @throws MuserError CONFIG_INVALID; the text, which may be half a key, is not repeated */
export function parseSeed(base64: string, place: string): Uint8Array {
  const seed = Buffer.from(base64.trim(), 'base64');
  if (seed.length === SEED_BYTES) return seed;
  throw new MuserError('CONFIG_INVALID', `${place} holds no identity key (base64 of ${SEED_BYTES} bytes)`);
}
