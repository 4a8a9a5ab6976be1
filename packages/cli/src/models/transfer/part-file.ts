import { createHash, type Hash } from 'node:crypto';
import { mkdir, open, rename, rm, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import { CliError, EXIT } from '../../exit.js';

const READ_BYTES = 1 << 20;

/** What a finished file must be. */
export interface Expected {
  size: number;
  sha256: string;
}

/**
 * A file under construction and the running digest of what is in it. What an earlier run left is read once, so that the
 * digest covers it; the bytes count only when size and digest of the whole match.
 */
export class PartFile {
  #length = 0;
  #hash: Hash = createHash('sha256');

  private constructor(
    readonly path: string,
    private readonly expected: Expected,
    private readonly handle: FileHandle,
  ) {}

  /**
   * Opens or creates it; a part that is longer than the file can be starts again at zero.
   *
   * @param onBytes hears of the bytes that were there as they are read back
   */
  static async open(
    path: string,
    expected: Expected,
    signal: AbortSignal,
    onBytes: (count: number) => void,
  ): Promise<PartFile> {
    await mkdir(dirname(path), { recursive: true });
    const handle = await open(path, 'a+', 0o600);
    const part = new PartFile(path, expected, handle);
    try {
      if ((await handle.stat()).size > expected.size) await part.reset();
      else await part.#readBack(signal, onBytes);
      return part;
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** Bytes that are there. */
  get length(): number {
    return this.#length;
  }

  async append(bytes: Buffer): Promise<void> {
    await writing(this.path, this.handle.appendFile(bytes));
    this.#hash.update(bytes);
    this.#length += bytes.length;
  }

  /** Forgets everything that is there. */
  async reset(): Promise<void> {
    await this.handle.truncate(0);
    this.#length = 0;
    this.#hash = createHash('sha256');
  }

  /** Whether size and digest are the expected ones. */
  matches(): boolean {
    return this.#length === this.expected.size && this.#hash.copy().digest('hex') === this.expected.sha256;
  }

  /** Moves a file that matches to its place, in one step that survives a power cut. The part is closed after that. */
  async publish(destination: string): Promise<void> {
    await writing(this.path, this.handle.sync());
    await this.handle.chmod(0o644);
    await this.handle.close();
    await mkdir(dirname(destination), { recursive: true });
    await rename(this.path, destination);
  }

  async close(): Promise<void> {
    await this.handle.close();
  }

  async discard(): Promise<void> {
    await this.handle.close();
    await rm(this.path, { force: true });
  }

  async #readBack(signal: AbortSignal, onBytes: (count: number) => void): Promise<void> {
    const block = Buffer.allocUnsafe(READ_BYTES);
    for (;;) {
      signal.throwIfAborted();
      const { bytesRead } = await this.handle.read(block, 0, block.length, this.#length);
      if (bytesRead === 0) return;
      this.#hash.update(block.subarray(0, bytesRead));
      this.#length += bytesRead;
      onBytes(bytesRead);
    }
  }
}

/** A full disk is told apart from other faults: it is the one that users can do something about. */
async function writing<T>(path: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? 'unknown reason';
    const full = code === 'ENOSPC' || code === 'EDQUOT';
    throw new CliError(
      EXIT.failed,
      full ? 'RESOURCE_EXHAUSTED' : 'UNAVAILABLE',
      full ? `the disk is full while writing ${path}` : `${path} cannot be written (${code})`,
      { cause: error, ...(full && { advice: 'Free some space and pull again: it goes on where it stopped.' }) },
    );
  }
}
