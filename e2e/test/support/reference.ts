import { mkdir } from 'node:fs/promises';
import { chat, type Answer } from './chat.js';
import { Node, type DecoderReady, type Launch } from './nodes.js';

/** For a machine that has a lot else to do. */
const LIMIT_MS = 1_800_000;
/** Nobody waits for it any more when it is stopped. */
const DRAIN_MS = 100;

/** A decoder without a coordinator, for the answers that others are compared with. Nothing ever reaches it but prompts. */
export class Reference {
  readonly #node: Node<DecoderReady>;
  readonly #answers = new Map<string, Promise<Answer>>();

  private constructor(node: Node<DecoderReady>) {
    this.#node = node;
  }

  /** @param settings as those of the decoder that is compared with it, or its answers may differ in a rounding */
  static async start(folder: string, settings: object, launch: Launch = {}): Promise<Reference> {
    await mkdir(folder, { mode: 0o700 });
    return new Reference(
      await Node.start<DecoderReady>('mac-decoder', folder, { ...settings, drainMs: DRAIN_MS }, launch),
    );
  }

  /** The local answer to a message; asked once. */
  answer(message: string): Promise<Answer> {
    let answer = this.#answers.get(message);
    if (answer === undefined) {
      answer = chat(this.#node.ready.http, message, 'local', { limitMs: LIMIT_MS });
      this.#answers.set(message, answer);
    }
    return answer;
  }

  stop(): Promise<void> {
    return this.#node.stop();
  }
}
