import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '');
/** The package manager and the version that package.json pins. */
export const PNPM = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8')).packageManager;

export const say = (text) => process.stderr.write(`muser: ${text}\n`);

export function fail(text) {
  say(text);
  process.exit(1);
}

/**
 * Runs a command in the repository's root. Its output is shown when `show` is set, otherwise only if it fails.
 * Ends this process when the command fails, unless `mayFail` is set: then resolves to the exit code.
 */
export function run(command, args, { show = false, mayFail = false, advice = '', env = {} } = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: ROOT,
      env: { ...process.env, ...env },
      stdio: show ? ['ignore', 2, 2] : ['ignore', 'pipe', 'pipe'],
    });
    const kept = [];
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (data) => kept.push(data));
    const settle = (code, problem) => {
      if (code === 0 || mayFail) return resolve(code);
      process.stderr.write(Buffer.concat(kept).subarray(-20_000));
      fail(`\`${command} ${args.join(' ')}\` ${problem}. ${advice}`.trim());
    };
    child.on('error', (error) => settle(127, `could not be started: ${error.message}`));
    child.on('close', (code, signal) => settle(code ?? 1, signal ? `was ended by ${signal}` : `ended with ${code}`));
  });
}
