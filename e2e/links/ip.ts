import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const LIMIT_MS = 10_000;
const run = promisify(execFile);

/** Runs a tool of iproute2 (`ip`, `tc`). @throws Error with what it complained of */
export async function iproute(tool: 'ip' | 'tc', ...args: string[]): Promise<string> {
  try {
    return (await run(tool, args, { timeout: LIMIT_MS })).stdout;
  } catch (error) {
    const { stderr = '', message } = error as { stderr?: string; message: string };
    throw new Error(`\`${tool} ${args.join(' ')}\`: ${stderr.trim() || message}`, { cause: error });
  }
}
