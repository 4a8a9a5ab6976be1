import { readFile, writeFile } from 'node:fs/promises';

/**
 * A GGUF file changed in place: same tensors, other metadata, or tensors exchanged. For tests that need a model which is
 * wrong in exactly one respect.
 */
export class GgufPatch {
  readonly #bytes: Buffer;

  private constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  static async read(path: string): Promise<GgufPatch> {
    return new GgufPatch(await readFile(path));
  }

  /** Changes a number of type f32 or u32. */
  setNumber(key: string, value: number): this {
    const at = this.#afterName(key);
    const type = this.#bytes.readUInt32LE(at);
    if (type === 6) this.#bytes.writeFloatLE(value, at + 4);
    else if (type === 4) this.#bytes.writeUInt32LE(value, at + 4);
    else throw new Error(`${key} has type ${type}`);
    return this;
  }

  /** Each of the two tensors, of the same shape and type, gets the other's data: they exchange their names. */
  exchangeTensors(a: string, b: string): this {
    const [first, second] = [this.#afterName(a), this.#afterName(b)];
    const formOf = (at: number): Buffer => this.#bytes.subarray(at, at + 8 + 8 * this.#bytes.readUInt32LE(at));
    if (a.length !== b.length || !formOf(first).equals(formOf(second))) throw new Error(`${a} and ${b} differ in form`);
    this.#bytes.write(b, first - a.length);
    this.#bytes.write(a, second - b.length);
    return this;
  }

  async write(path: string): Promise<void> {
    await writeFile(path, this.#bytes);
  }

  /** Names are in front of what they name, with their length as u64. */
  #afterName(name: string): number {
    const text = Buffer.from(name);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const at = this.#bytes.indexOf(Buffer.concat([length, text]));
    if (at < 0) throw new Error(`the file has no ${name}`);
    return at + 8 + text.length;
  }
}
