import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { ROOT, say } from './run.mjs';

/** Runs `work` while no other process of this checkout holds the lock; the lock of a dead process is taken over. */
export async function withLock(name, work) {
  mkdirSync(`${ROOT}/.cache`, { recursive: true });
  const path = `${ROOT}/.cache/${name}.lock`;
  for (let waited = 0; !acquire(path); waited++) {
    if (waited === 0) say(`waiting for another ${name} of this checkout`);
    await sleep(250);
  }
  const release = () => rmSync(path, { force: true });
  process.once('exit', release);
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(130));
  await work();
  release();
}

function acquire(path) {
  try {
    writeFileSync(path, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if (error.code !== 'EEXIST') throw error;
  }
  const holder = Number(readIfThere(path));
  if (holder && !isAlive(holder)) rmSync(path, { force: true });
  return false;
}

function readIfThere(path) {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}
