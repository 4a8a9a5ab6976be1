/** What a set-up has made so far, so that one that fails half-way leaves nothing behind and tells its own error. */
export class Cleanups {
  readonly #steps: (() => unknown)[] = [];

  /** @param step undoes what was just made */
  add(step: () => unknown): void {
    this.#steps.push(step);
  }

  /** Takes every step, the last first. One that fails stops none of the others. */
  async run(): Promise<void> {
    const errors: unknown[] = [];
    for (const step of this.#steps.splice(0).reverse()) {
      try {
        await step();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw new AggregateError(errors, 'a clean-up failed');
  }
}
