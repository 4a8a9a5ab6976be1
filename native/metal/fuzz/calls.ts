// A course of calls of the engine's TypeScript face with hostile numbers and bytes, on a real engine: each call does what
// it says or fails with a code and has changed nothing, and the next sequence answers as if none of it had been.
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { Choices } from '@muser/testing';
import { Engine, EngineError, GREEDY, type KvExport, type KvStage, loadModel, type Sequence } from '../ts/index.js';

const CHUNK_TOKENS = 32;
const RESERVED_TOKENS = 120;
const MAX_CALLS = 24;
const NUMBERS = [
  0,
  1,
  2,
  31,
  32,
  33,
  64,
  119,
  120,
  121,
  2 ** 31 - 1,
  2 ** 31,
  2 ** 32 - 1,
  2 ** 32,
  -1,
  0.5,
  NaN,
  2 ** 53,
];

const model = await loadModel(fileURLToPath(new URL('../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url)));
const { layers, kvHeads, headDimension } = model.info.geometry;
const ROW_BYTES = kvHeads * headDimension * 2;
const engine = await Engine.create(model, {
  maxSequences: 3,
  contextTokens: 4 * RESERVED_TOKENS,
  chunkTokens: CHUNK_TOKENS,
  flashAttention: false,
  kvType: 'f16',
  threads: 1,
});
const prompt = model.tokenize('What is the access code for Bolo?', { special: false });
const answer = await answerOf(engine.open(RESERVED_TOKENS));

/** One sequence, its stage and its export, and the calls that an input makes on them. */
class Course {
  readonly #choose: Choices;
  readonly #open: Sequence[] = [];
  #sequence: Sequence;
  #stage: { stage: KvStage; start: number; end: number } | null = null;
  #view: KvExport | null = null;

  constructor(choose: Choices) {
    this.#choose = choose;
    this.#sequence = engine.open(RESERVED_TOKENS);
    this.#open.push(this.#sequence);
  }

  async call(): Promise<void> {
    const position = this.#sequence.position;
    const done = await this.#choose.pick([
      () => this.#evaluate(),
      () => this.#stageRows(),
      () => this.#fill(),
      () => this.#put(),
      () => this.#install(),
      () => this.#install(),
      () => this.#truncate(),
      () => this.#export(),
      () => this.#read(),
      () => this.#fork(),
      () => this.#sequence.reserve(this.#number(RESERVED_TOKENS)).then(always, refused),
    ])();
    if (done) return;
    assert.equal(this.#sequence.position, position, 'a call that failed has moved the end');
  }

  async close(): Promise<void> {
    this.#stage?.stage.dispose();
    this.#view?.dispose();
    await Promise.all(this.#open.map((sequence) => sequence.dispose()));
  }

  /** Near `value`, or any number at all. */
  #number(value: number): number {
    return this.#choose.integer(0, 3) === 0 ? this.#choose.pick(NUMBERS) : value + this.#choose.pick([0, 0, 0, 1, -1]);
  }

  async #evaluate(): Promise<boolean> {
    const position = this.#sequence.position;
    const tokens = Int32Array.from({ length: this.#choose.integer(0, 40) }, () =>
      this.#choose.integer(0, 20) === 0 ? this.#choose.pick([-1, 2 ** 31 - 1]) : this.#choose.integer(0, 1000),
    );
    const done = await this.#sequence.evaluate(tokens).then(always, refused);
    if (done) assert.equal(this.#sequence.position, position + tokens.length);
    return done;
  }

  #stageRows(): boolean {
    const start = this.#number(this.#sequence.position);
    const end = this.#number(start + this.#choose.integer(1, CHUNK_TOKENS));
    const windowStart = this.#number(start);
    return attempt(() => {
      const stage = this.#sequence.stage(start, end, windowStart);
      this.#stage?.stage.dispose();
      this.#stage = { stage, start, end };
    });
  }

  /** Every row of the stage, as a transfer brings them. */
  #fill(): boolean {
    if (this.#stage === null) return false;
    const { stage, start, end } = this.#stage;
    const bytes = new Uint8Array((end - start) * ROW_BYTES).fill(0x30);
    return attempt(() => {
      for (const layer of layers.keys()) {
        for (const kind of ['k', 'v'] as const) stage.put(layer, kind, start, end - start, 'f16', bytes);
      }
      assert(stage.complete, 'is not complete with every row there');
    });
  }

  #put(): boolean {
    if (this.#stage === null) return false;
    const { stage, start, end } = this.#stage;
    const count = this.#number(this.#choose.integer(1, end - start));
    const size = Math.max(0, Math.min(count * ROW_BYTES, 1 << 20) + this.#choose.pick([0, 0, 0, 1, -1]));
    const bytes = new Uint8Array(Number.isInteger(size) ? size : 0).fill(this.#choose.pick([0, 0x30, 0x7c, 0xff]));
    return attempt(() =>
      stage.put(
        this.#number(this.#choose.integer(0, layers.length - 1)),
        this.#choose.pick(['k', 'v']),
        this.#number(start),
        count,
        this.#choose.pick(['f16', 'bf16']),
        bytes,
      ),
    );
  }

  async #install(): Promise<boolean> {
    if (this.#stage === null) return false;
    const { stage, start, end } = this.#stage;
    const position = this.#sequence.position;
    const done = await this.#sequence.install(stage).then(always, refused);
    if (done) assert(start === position && this.#sequence.position === end, 'installed rows in another place');
    if (done) this.#stage = null;
    return done;
  }

  async #truncate(): Promise<boolean> {
    const to = this.#number(this.#choose.integer(0, RESERVED_TOKENS));
    const done = await this.#sequence.truncate(to).then(always, refused);
    if (done) assert.equal(this.#sequence.position, to);
    return done;
  }

  async #export(): Promise<boolean> {
    const end = this.#number(this.#sequence.position);
    const start = this.#number(Math.max(0, end - 8));
    const windowStart = this.#number(start);
    const view = await this.#sequence.exportRange(start, end, { windowStart }).catch(refused);
    if (view === false) return false;
    this.#view?.dispose();
    this.#view = view;
    return true;
  }

  #read(): boolean {
    const view = this.#view;
    if (view === null) return false;
    const target = new Uint8Array(this.#choose.integer(0, 9) * ROW_BYTES);
    const offset = this.#number(0);
    return attempt(() => {
      const [layer, token] = [this.#number(0), this.#number(Math.max(0, this.#sequence.position - 8))];
      const written = view.read(layer, this.#choose.pick(['k', 'v']), token, this.#number(1), target, offset);
      assert(offset + written <= target.length, 'wrote beyond the target');
    });
  }

  async #fork(): Promise<boolean> {
    const fork = await this.#sequence.fork(this.#number(RESERVED_TOKENS)).catch(refused);
    if (fork === false) return false;
    assert.equal(fork.position, this.#sequence.position);
    this.#open.push(fork);
    this.#sequence = fork;
    return true;
  }
}

const always = (): true => true;

/** @throws what was thrown when it is not an error of this package with a code that the caller can have caused */
function refused(error: unknown): false {
  if (!(error instanceof EngineError)) throw error;
  if (error.code === 'ENGINE_FAILED' || error.code === 'ADDON_UNAVAILABLE') throw error;
  return false;
}

function attempt(call: () => void): boolean {
  try {
    call();
    return true;
  } catch (error) {
    return refused(error);
  }
}

async function answerOf(sequence: Sequence): Promise<number[]> {
  const answered: number[] = [];
  await sequence.generate({ ...GREEDY, prompt, maxTokens: 4 }, ({ tokens }) => void answered.push(...tokens));
  await sequence.dispose();
  return answered;
}

export async function fuzz(input: Buffer): Promise<void> {
  const choose = new Choices(input);
  const course = new Course(choose);
  try {
    for (let calls = 0; calls < MAX_CALLS && !choose.done; calls += 1) await course.call();
  } finally {
    await course.close();
  }
  assert.deepEqual(await answerOf(engine.open(RESERVED_TOKENS)), answer, 'what came before has changed an answer');
}

export function seeds(): [string, Buffer][] {
  return [
    ['hand-off', Buffer.from([1, 1, 0, 31, 1, 0, 1, 0, 2, 4, 0, 30, 1, 2, 3, 7, 1, 0, 1, 0, 1, 0, 8, 5])],
    ['evaluate-and-cut', Buffer.from([0, 39, 1, 1, 1, 2, 1, 3, 6, 1, 30, 0, 9, 1, 0])],
    ['fork', Buffer.from([0, 20, 1, 1, 1, 1, 9, 1, 0, 0, 9, 1, 1])],
  ];
}
