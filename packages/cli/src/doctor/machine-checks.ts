import { stat, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import { execa } from 'execa';
import { z } from 'zod';
import { explained } from '../explain.js';
import { isMissing, openRegular } from '../files.js';
import { formatBytes } from '../format.js';
import { physicalCores } from '../system/cores.js';
import { ENTRIES } from '../system/paths.js';
import { childEnvironment } from '../system/process.js';
import { printable } from '../terminal.js';
import { failed, ok, warning, type Check } from './check.js';

const MINIMUM_NODE = { major: 20, minor: 19 };
const PROBE_LIMIT_MS = 20_000;
const WANTED_FREE_BYTES = 1_000_000_000;

export function checkNode(version = process.versions.node): Check {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const enough = major > MINIMUM_NODE.major || (major === MINIMUM_NODE.major && minor >= MINIMUM_NODE.minor);
  if (enough) return ok('node', `Node ${version}`);
  return failed('node', `Node ${version}`, 'Install Node 20.19 or newer (https://nodejs.org).');
}

export function checkPlatform(): Check {
  const detail = `${process.platform} ${process.arch}, ${physicalCores()} cores`;
  const built = ['darwin arm64', 'linux x64', 'linux arm64'];
  if (built.includes(`${process.platform} ${process.arch}`)) return ok('platform', detail);
  return failed('platform', detail, `muser is built for ${built.join(', ')}.`);
}

const probeSchema = z.object({
  llamaVersion: z.string(),
  llamaCommit: z.string(),
  backends: z.array(z.object({ name: z.string(), description: z.string() })),
});

/** Loads the addon in a process of its own: a library that crashes on this machine must not end the doctor. */
export async function checkAddon(): Promise<Check> {
  const advice = 'Run `npm run bootstrap` in the checkout; it builds the addon and says what is missing.';
  const result = await execa(process.execPath, [ENTRIES.addonProbe], {
    reject: false,
    timeout: PROBE_LIMIT_MS,
    killSignal: 'SIGKILL',
    maxBuffer: 256 * 1024,
    extendEnv: false,
    env: childEnvironment(process.env),
  });
  if (result.timedOut) return failed('engine', `no answer within ${PROBE_LIMIT_MS / 1000} s`, advice);
  if (result.exitCode !== 0) {
    const complaint = printable(result.stderr).trim().split('\n').at(-1) ?? '';
    return failed('engine', complaint || printable(result.shortMessage ?? 'the probe failed'), advice);
  }
  const probe = probeSchema.safeParse(parseJson(result.stdout));
  if (!probe.success) return failed('engine', 'the probe gave an answer of an unknown form', advice);
  const { llamaVersion, llamaCommit, backends } = probe.data;
  const names = backends.map(({ name, description }) => `${name} (${description})`).join(', ') || 'none';
  const detail = printable(`llama.cpp ${llamaVersion} (${llamaCommit.slice(0, 9)}), backends: ${names}`);
  return backends.length > 0 ? ok('engine', detail) : failed('engine', detail, advice);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Only the first bytes are read: whether it is a GGUF file at all, not whether it is whole. */
export async function checkModel(path: string): Promise<Check> {
  const advice = 'Name a GGUF file with --model.';
  try {
    const file = await openRegular(path);
    try {
      const magic = Buffer.alloc(4);
      await file.read(magic, 0, 4, 0);
      if (magic.toString('latin1') !== 'GGUF') return failed('model', `${path} is no GGUF file`, advice);
      return ok('model', `${path}, ${formatBytes((await file.stat()).size)}`);
    } finally {
      await file.close();
    }
  } catch (error) {
    return failed(
      'model',
      isMissing(error) ? `${path}: not there` : (explained(error)?.message ?? String(error)),
      advice,
    );
  }
}

export async function checkDisk(folder: string): Promise<Check> {
  const there = await nearestFolder(folder);
  const { bavail, bsize } = await statfs(there);
  const free = bavail * bsize;
  const detail = `${formatBytes(free)} free at ${there}`;
  if (free >= WANTED_FREE_BYTES) return ok('disk', detail);
  return warning('disk', detail, 'Free some space: logs and the registry need a few megabytes, models much more.');
}

async function nearestFolder(path: string): Promise<string> {
  try {
    await stat(path);
    return path;
  } catch (error) {
    if (!isMissing(error) || dirname(path) === path) throw error;
    return nearestFolder(dirname(path));
  }
}
