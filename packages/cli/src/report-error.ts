import { CommanderError } from 'commander';
import { BrokenPipeError, EXIT, InterruptedError } from './exit.js';
import { explained } from './explain.js';
import { printable, StatusOutput } from './terminal.js';

/**
 * Tells the user what went wrong, on standard error, and returns the exit code. Nothing secret is in these messages.
 * @param args the command line: with --json every failure is one JSON object on standard output as well
 */
export function reportError(error: unknown, args: readonly string[]): number {
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  const json = wantsJson(args);
  // Commander has printed its own message already; --help and --version end this way too, with code 0.
  if (error instanceof CommanderError) {
    if (error.exitCode === 0) return EXIT.ok;
    if (json) printFailure('INVALID_REQUEST', usageMessage(error));
    return EXIT.usage;
  }
  if (error instanceof BrokenPipeError) return EXIT.ok;
  if (error instanceof InterruptedError) {
    output.always('cancelled');
    return error.exitCode;
  }
  const failure = explained(error);
  if (failure !== null) {
    if (json) printFailure(failure.code, failure.message);
    output.always(`${output.paint('red', 'error:')} ${printable(failure.message)} (${printable(failure.code)})`);
    if (failure.advice !== null) output.always(`  ${printable(failure.advice)}`);
    return failure.exitCode;
  }
  if (json) printFailure('INTERNAL', 'unexpected error; standard error says more');
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  output.always(`${output.paint('red', 'unexpected error:')} ${printable(text)}`);
  return EXIT.failed;
}

/** A command line that was not understood has no flags yet, so what stands in it decides. */
function wantsJson(args: readonly string[]): boolean {
  const end = args.indexOf('--');
  return args.slice(0, end < 0 ? undefined : end).includes('--json');
}

function usageMessage(error: CommanderError): string {
  // Without a command commander shows the help, and has no message.
  return error.code === 'commander.help' ? 'there is no command' : error.message.replace(/^error: /, '');
}

function printFailure(code: string, message: string): void {
  process.stdout.write(`${JSON.stringify({ error: { code, message: printable(message) } })}\n`);
}
