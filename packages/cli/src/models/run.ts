import { listenForInterrupts } from '../signals.js';
import { StatusOutput } from '../terminal.js';

/** What a command works with: its signal, and where it tells people what happens. */
export interface CommandContext {
  signal: AbortSignal;
  output: StatusOutput;
}

/**
 * Runs a command until it ends or Ctrl-C. Its result is printed: as one JSON object, or as the text that `show` makes of
 * it.
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
  } finally {
    output.clear();
    interrupts.dispose();
  }
}
