import { isNodeId, MAX_REVOKED_NODES, MuserError, NODE_ID_BYTES, type RevokedNodes } from '@muser/protocol';
import { type Logger, readSmallFile, writeFileAtomic } from '@muser/service-kit';
import { z } from 'zod';

/** Quotes and a comma around each id, and the rest. */
const MAX_FILE_BYTES = MAX_REVOKED_NODES * (NODE_ID_BYTES + 3) + 256;

const schema = z.strictObject({
  version: z.number().int().min(0),
  nodeIds: z.array(z.string().refine(isNodeId)).max(MAX_REVOKED_NODES),
});

export interface RevocationsOptions {
  /** Where the list is kept, so that it also holds after a restart without a coordinator. */
  readonly path: string;
  readonly logger: Logger;
}

/**
 * The nodes that the coordinator has revoked. Its lists are complete and numbered: one with a lower number than the last
 * came late (or from a coordinator that was put back to a backup), so it adds and removes nothing.
 */
export class Revocations {
  /** Called once for each node that becomes revoked while the process runs. */
  onRevoked: (nodeId: string) => void = () => undefined;
  readonly #options: RevocationsOptions;
  #version: number;
  #nodeIds: ReadonlySet<string>;
  /** The last write; they follow one another. */
  #written: Promise<void> = Promise.resolve();

  /** @throws MuserError CONFIG_INVALID for a damaged file */
  static async open(options: RevocationsOptions): Promise<Revocations> {
    try {
      const text = await readSmallFile(options.path, MAX_FILE_BYTES);
      const { version, nodeIds } = text === null ? { version: 0, nodeIds: [] } : schema.parse(JSON.parse(text));
      return new Revocations(options, version, nodeIds);
    } catch (cause) {
      const message = `${options.path} is damaged: delete it, and the coordinator sends its list again`;
      throw new MuserError('CONFIG_INVALID', message, { cause });
    }
  }

  private constructor(options: RevocationsOptions, version: number, nodeIds: readonly string[]) {
    this.#options = options;
    this.#version = version;
    this.#nodeIds = new Set(nodeIds);
  }

  has(nodeId: string): boolean {
    return this.#nodeIds.has(nodeId);
  }

  /** @throws MuserError NODE_REVOKED */
  check(nodeId: string): void {
    if (this.has(nodeId)) throw revoked(nodeId);
  }

  /**
   * Takes a list of the coordinator. It holds at once, and on disk when this resolves, unless the disk refuses.
   *
   * @returns the version that holds now
   */
  async take({ version, nodeIds }: Pick<RevokedNodes, 'version' | 'nodeIds'>): Promise<number> {
    const before = this.#nodeIds;
    const isLate = version < this.#version;
    // The newest ones stand last; the earliest of all is the first that can be forgotten.
    const all = isLate ? [...new Set([...nodeIds, ...before])] : nodeIds;
    this.#nodeIds = new Set(all.slice(-MAX_REVOKED_NODES));
    const isNew = version > this.#version || [...this.#nodeIds].some((nodeId) => !before.has(nodeId));
    this.#version = Math.max(version, this.#version);
    for (const nodeId of this.#nodeIds) {
      if (before.has(nodeId)) continue;
      this.#options.logger.warn({ nodeId }, 'node revoked');
      this.onRevoked(nodeId);
    }
    if (isNew || before.size !== this.#nodeIds.size) await this.#write();
    return this.#version;
  }

  #write(): Promise<void> {
    const { path, logger } = this.#options;
    const text = `${JSON.stringify({ version: this.#version, nodeIds: [...this.#nodeIds] })}\n`;
    this.#written = this.#written
      .then(() => writeFileAtomic(path, text))
      // In memory it holds all the same, and the coordinator repeats it after a restart.
      .catch((error: unknown) => logger.warn({ err: error }, 'the list of revoked nodes could not be written'));
    return this.#written;
  }
}

export function revoked(nodeId: string): MuserError {
  return new MuserError('NODE_REVOKED', `the node ${nodeId} was revoked`);
}
