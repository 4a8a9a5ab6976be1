import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { ROOT } from './run.mjs';

const FOLDER = `${ROOT}/.cache/stamps`;

/** The digest that was stored when the step last succeeded, or an empty string. */
export function readStamp(name) {
  try {
    return readFileSync(`${FOLDER}/${name}`, 'utf8');
  } catch {
    return '';
  }
}

export function writeStamp(name, digest) {
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(`${FOLDER}/${name}`, digest);
}
