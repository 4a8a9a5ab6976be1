import { CommanderError } from 'commander';
import { BrokenPipeError, CliError, EXIT, InterruptedError } from './exit.js';
import { printable, StatusOutput } from './terminal.js';

/**
 * Tells the user what went wrong, on standard error, and returns the exit code. Nothing secret is in these messages.
 * @param args the command line: with --json wrong usage is one JSON object on standard output, like every other failure
 */
export function reportError(error: unknown, args: readonly string[]): number {
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  // Commander has printed its own message already; --help and --version end this way too, with code 0.
  if (error instanceof CommanderError) {
    if (error.exitCode === 0) return EXIT.ok;
    if (wantsJson(args)) printUsageError(error);
    return EXIT.usage;
  }
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

/** The command line was not understood, so what stands in it decides. */
function wantsJson(args: readonly string[]): boolean {
  const end = args.indexOf('--');
  return args.slice(0, end < 0 ? undefined : end).includes('--json');
}

function printUsageError(error: CommanderError): void {
  // Without a command commander shows the help, and has no message.
  const message = error.code === 'commander.help' ? 'there is no command' : error.message.replace(/^error: /, '');
  process.stdout.write(`${JSON.stringify({ error: { code: 'INVALID_REQUEST', message: printable(message) } })}\n`);
}
