import { readFileSync } from 'node:fs';
import { z } from 'zod';

/** The version of the checkout that this CLI belongs to. */
export function cliVersion(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  return z.object({ version: z.string() }).parse(JSON.parse(text)).version;
}
