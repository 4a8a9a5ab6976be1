import { InvalidArgumentError } from 'commander';

/** For commander: a whole number within bounds, or a clear refusal. */
export function wholeNumber(minimum: number, maximum: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (/^\d+$/.test(text) && value >= minimum && value <= maximum) return value;
    throw new InvalidArgumentError(`It must be a whole number from ${minimum} to ${maximum}.`);
  };
}

/** For commander: an option that may be given several times. */
export function collect(value: string, before: string[] | undefined): string[] {
  return [...(before ?? []), value];
}
