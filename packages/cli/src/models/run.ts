import { CliError } from '../exit.js';
import { listenForInterrupts } from '../signals.js';
import { StatusOutput } from '../terminal.js';

/** What a command works with: its signal, and where it tells people what happens. */
export interface CommandContext {
  signal: AbortSignal;
  output: StatusOutput;
}

/**
 * Runs a command until it ends or Ctrl-C. Its result is printed: as one JSON object, or as the text that `show` makes of
 * it. With --json a failure is one JSON object too.
 */
export async function runCommand<T>(
  json: boolean,
  work: (context: CommandContext) => Promise<T>,
  show: (result: T, output: StatusOutput) => string,
): Promise<T> {
  const interrupts = listenForInterrupts();
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  try {
    const result = await work({ signal: interrupts.signal, output });
    output.clear();
    process.stdout.write(`${json ? JSON.stringify(result) : show(result, output)}\n`);
    return result;
  } catch (error) {
    output.clear();
    if (json && error instanceof CliError) {
      const { code, message, advice } = error;
      process.stdout.write(`${JSON.stringify({ error: { code, message, advice } })}\n`);
    }
    throw error;
  } finally {
    interrupts.dispose();
  }
}
