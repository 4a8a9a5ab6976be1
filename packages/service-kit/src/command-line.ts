import { parseArgs } from 'node:util';

import { EXIT, describeError } from './errors.js';

/** One form of calling a process, for example `identity create --dir DIR`. */
export interface Command {
  /** The words that choose it: `['identity', 'create']`. */
  words: readonly string[];
  /** The flags, each of which takes a value and must be given: `['dir']`. */
  flags: readonly string[];
  /** Returns the exit code. What it throws is shown as one line on standard error. */
  run(values: Readonly<Record<string, string>>): Promise<number>;
}

export interface CommandLine {
  name: string;
  /** Without the program: `process.argv.slice(2)`. */
  argv: readonly string[];
  commands: readonly Command[];
}

/** Runs the command that the arguments name and returns the exit code; EXIT.usage with the usage when none does. */
export async function runCommandLine({ name, argv, commands }: CommandLine): Promise<number> {
  const command = commands.find(({ words }) => words.every((word, index) => argv[index] === word));
  if (command === undefined) return refuse(name, commands, 'unknown command');
  let values: Record<string, string>;
  try {
    values = parseFlags(command, argv.slice(command.words.length));
  } catch (error) {
    return refuse(name, commands, describeError(error).message);
  }
  try {
    return await command.run(values);
  } catch (error) {
    const { code, message } = describeError(error);
    process.stderr.write(`${name}: ${code}: ${message}\n`);
    return code === 'CONFIG_INVALID' ? EXIT.usage : EXIT.failed;
  }
}

function parseFlags(command: Command, args: readonly string[]): Record<string, string> {
  const { values } = parseArgs({
    args: [...args],
    options: Object.fromEntries(command.flags.map((flag) => [flag, { type: 'string' as const }])),
    strict: true,
    allowPositionals: false,
  });
  const given: Record<string, string> = {};
  for (const flag of command.flags) {
    const value = values[flag];
    if (typeof value !== 'string' || value === '') throw new Error(`--${flag} needs a value`);
    given[flag] = value;
  }
  return given;
}

function refuse(name: string, commands: readonly Command[], reason: string): number {
  const usage = commands.map(({ words, flags }) =>
    ['  ' + name, ...words, ...flags.map((flag) => `--${flag} ${flag.toUpperCase()}`)].join(' '),
  );
  process.stderr.write(`${name}: ${reason}\nUsage:\n${usage.join('\n')}\n`);
  return EXIT.usage;
}
