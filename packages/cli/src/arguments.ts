import { type Command, InvalidArgumentError } from 'commander';
import { usageError } from './exit.js';

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

/** No path, address or name is empty; an unset variable of a script is, and the current folder is hardly what it meant. */
export function refuseEmptyValues(command: Command): void {
  command.registeredArguments.forEach((argument, index) => {
    if (command.processedArgs[index] === '') throw usageError(`<${argument.name()}> must not be empty`);
  });
  for (const [name, value] of Object.entries<unknown>(command.opts())) {
    const option = command.options.find((each) => each.attributeName() === name);
    if (value === '') throw usageError(`${option?.long ?? name} must not be empty`);
  }
}
