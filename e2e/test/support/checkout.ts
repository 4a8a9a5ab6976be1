import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = rootAbove(dirname(fileURLToPath(import.meta.url)));

/** A file of this checkout. This module runs from its source as well as compiled, at another depth. */
export function inCheckout(path: string): string {
  return join(ROOT, path);
}

function rootAbove(folder: string): string {
  if (existsSync(join(folder, 'pnpm-workspace.yaml'))) return folder;
  if (dirname(folder) === folder) throw new Error('this is no checkout of muser');
  return rootAbove(dirname(folder));
}
