import { rm } from 'node:fs/promises';

import { MuserError } from '@muser/protocol';
import { readSmallFile, writeFileAtomic } from '@muser/service-kit';
import { z } from 'zod';

import type { BackendDescription } from '../backend/reloadable.js';

/** Room for more layers than any model has. */
const MAX_BYTES = 1 << 20;

const count = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const digest = z
  .string()
  .regex(/^[0-9a-f]{64}$/)
  .transform((hex): Uint8Array => Buffer.from(hex, 'hex'));

const schema = z.strictObject({
  name: z.string(),
  model: z.strictObject({
    identity: z.strictObject({ name: z.string(), fingerprint: digest, modelDigest: digest }),
    geometry: z.strictObject({
      layers: z.array(z.enum(['global', 'window'])),
      kvHeads: count,
      headDimension: count,
      windowTokens: count,
      ropeBase: z.number(),
      ropeLayers: z.enum(['all', 'window']),
      vocabularySize: count,
    }),
  }),
  engine: z.strictObject({ version: z.string(), cacheLayout: z.string() }),
  limits: z.strictObject({
    maxPromptTokens: count,
    maxConcurrent: count,
    chunkTokens: count,
    wireTypes: z.array(z.enum(['f16', 'bf16'])),
  }),
});

/**
 * The file whose presence says that the producer is paused, so that it stays paused when it starts again. It holds what
 * the unloaded engine had loaded, because nobody can look that up without loading it.
 */
export class PauseFile {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /** @returns null when the producer is not paused. @throws MuserError CONFIG_INVALID for a damaged file */
  async read(): Promise<BackendDescription | null> {
    try {
      const text = await readSmallFile(this.#path, MAX_BYTES);
      return text === null ? null : schema.parse(JSON.parse(text));
    } catch (cause) {
      const message = `${this.#path} is damaged: delete it, and the producer starts with its model loaded`;
      throw new MuserError('CONFIG_INVALID', message, { cause });
    }
  }

  /** @throws MuserError UNAVAILABLE when it cannot be written */
  async write(description: BackendDescription): Promise<void> {
    const { identity, geometry } = description.model;
    const digests = { fingerprint: hex(identity.fingerprint), modelDigest: hex(identity.modelDigest) };
    const stored = { ...description, model: { geometry, identity: { ...identity, ...digests } } };
    await writeFileAtomic(this.#path, `${JSON.stringify(stored)}\n`).catch((error: unknown) => this.#refuse(error));
  }

  /** @throws MuserError UNAVAILABLE when it cannot be removed */
  async remove(): Promise<void> {
    await rm(this.#path, { force: true }).catch((error: unknown) => this.#refuse(error));
  }

  #refuse(cause: unknown): never {
    const reason = (cause as NodeJS.ErrnoException).code ?? 'unknown reason';
    throw new MuserError('UNAVAILABLE', `${this.#path} cannot be changed (${reason}): check the disk`, { cause });
  }
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
