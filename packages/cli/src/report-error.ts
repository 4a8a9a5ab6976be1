import { CommanderError } from 'commander';
import { BrokenPipeError, CliError, EXIT, InterruptedError } from './exit.js';
import { printable, StatusOutput } from './terminal.js';

/** Tells the user what went wrong, on standard error, and returns the exit code. Nothing secret is in these messages. */
export function reportError(error: unknown): number {
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  // Commander has printed its own message already; --help and --version end this way too, with code 0.
  if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.ok : EXIT.usage;
  if (error instanceof BrokenPipeError) return EXIT.ok;
  if (error instanceof InterruptedError) {
    output.always('cancelled');
    return error.exitCode;
  }
  if (error instanceof CliError) {
    output.always(`${output.paint('red', 'error:')} ${printable(error.message)} (${printable(error.code)})`);
    if (error.advice !== null) output.always(`  ${printable(error.advice)}`);
    return error.exitCode;
  }
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  output.always(`${output.paint('red', 'unexpected error:')} ${printable(text)}`);
  return EXIT.failed;
}
