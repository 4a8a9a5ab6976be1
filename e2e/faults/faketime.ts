import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

const LIBRARIES = '/usr/lib';
const NAME = 'faketime/libfaketimeMT.so.1';

/** The library of Debian's package `faketime`, for programs with threads; null when it is not installed. */
export function findFaketime(): string | null {
  if (!existsSync(LIBRARIES)) return null;
  const paths = readdirSync(LIBRARIES).map((folder) => join(LIBRARIES, folder, NAME));
  return paths.find((path) => existsSync(path)) ?? null;
}
