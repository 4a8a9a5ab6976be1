import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { EngineError } from './errors.js';
import type { NativeBackend, NativeDescription } from './native.js';

export type AddonProbe =
  | {
      ok: true;
      platform: string;
      llamaVersion: string;
      llamaCommit: string;
      backends: NativeBackend[];
      availableMemoryBytes: number;
      device: NativeDescription['device'];
    }
  | { ok: false; reason: string; advice: string };

const PROBE_LIMIT_MS = 20_000;
const OUTPUT_LIMIT_BYTES = 64 * 1024;

/**
 * Loads the addon in a child process and says what it found, so that a library that crashes or hangs on this machine
 * (an illegal instruction, a broken driver) ends the child and not its caller. Never rejects.
 */
export function probeAddon(): Promise<AddonProbe> {
  return new Promise((resolve) => {
    const main = fileURLToPath(new URL('./probe-main.js', import.meta.url));
    const child = spawn(process.execPath, [main], {
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: PROBE_LIMIT_MS,
      killSignal: 'SIGKILL',
    });
    let output = '';
    let complaint = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      if (output.length < OUTPUT_LIMIT_BYTES) output += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      if (complaint.length < OUTPUT_LIMIT_BYTES) complaint += text;
    });
    child.once('error', (error) => {
      resolve(failure(`cannot start a child process: ${error.message}`));
    });
    child.once('close', (code, signal) => {
      resolve(judge(output, complaint, code, signal));
    });
  });
}

/**
 * Rejects with ADDON_UNAVAILABLE, the reason and what to do when the addon cannot be loaded on this machine.
 */
export async function requireAddon(): Promise<void> {
  const probe = await probeAddon();
  if (!probe.ok) throw new EngineError('ADDON_UNAVAILABLE', `${probe.reason}; ${probe.advice}`);
}

function judge(output: string, complaint: string, code: number | null, signal: NodeJS.Signals | null): AddonProbe {
  if (code === 0) {
    try {
      return JSON.parse(output) as AddonProbe;
    } catch {
      return failure('the probe gave no readable answer');
    }
  }
  const last = complaint.trim().split('\n').at(-1) ?? '';
  if (signal === 'SIGKILL') return failure(`the probe did not answer within ${PROBE_LIMIT_MS / 1000} s`);
  if (signal !== null) return failure(`loading the addon ended the probe by ${signal} ${last}`.trim());
  return failure(last === '' ? `the probe ended with code ${code}` : last);
}

function failure(reason: string): AddonProbe {
  return {
    ok: false,
    reason,
    advice:
      'Run `npm run bootstrap` to build the addon again; `node native/metal/scripts/build.mjs` shows the details.',
  };
}
