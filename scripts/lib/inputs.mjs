import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';
import { ROOT } from './run.mjs';

const WORKSPACES = [...children('packages'), 'native/metal', 'bench', 'e2e'];

function children(folder) {
  return readdirSync(join(ROOT, folder)).map((name) => `${folder}/${name}`);
}

/** Every file that decides what the package manager installs. */
export function dependencyInputs() {
  return ['package.json', 'pnpm-lock.yaml', 'pnpm-workspace.yaml', ...WORKSPACES.map((w) => `${w}/package.json`)]
    .map((path) => join(ROOT, path))
    .filter(existsSync);
}

/** Every file that decides what the TypeScript compiler writes. */
export function typescriptInputs() {
  const sources = WORKSPACES.flatMap((w) => [`${w}/src`, `${w}/ts`]);
  const programs = ['faults', 'links', 'soak', 'test/support'].map((name) => `e2e/${name}`);
  const folders = [...sources, ...programs].map((path) => join(ROOT, path));
  const configs = ['tsconfig.json', 'tsconfig.base.json', ...WORKSPACES.map((w) => `${w}/tsconfig.json`)];
  return [
    ...configs.map((path) => join(ROOT, path)).filter(existsSync),
    ...folders.filter(existsSync).flatMap((folder) => files(folder, /\.m?ts$/)),
  ];
}

function files(folder, pattern) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return files(path, pattern);
    return pattern.test(entry.name) && statSync(path).isFile() ? [path] : [];
  });
}

/** A digest over the names and contents of files, and over further strings. */
export function digestOf(paths, ...more) {
  const hash = createHash('sha256');
  for (const path of [...paths].sort()) {
    hash
      .update(`${relative(ROOT, path)}\0`)
      .update(readFileSync(path))
      .update('\0');
  }
  for (const text of more) hash.update(text).update('\0');
  return hash.digest('hex');
}
