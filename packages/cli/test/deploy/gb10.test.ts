import { spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { planProducer } from '../../src/producer-plan/plan.js';
import { findPlannedModel } from '../../src/producer-plan/models.js';

const ROOT = new URL('../../../../', import.meta.url);
const read = (path: string): Promise<string> => readFile(new URL(path, ROOT), 'utf8');

/** Instructions of a Containerfile with continued lines joined. Throws at a line that is none. */
function instructions(text: string): { name: string; argument: string }[] {
  const joined = text
    .split('\n')
    .filter((line) => !/^\s*(#|$)/.test(line))
    .join('\n')
    .replace(/\\\n\s*/g, ' ');
  return joined.split('\n').map((line) => {
    const match = /^(ARG|FROM|RUN|WORKDIR|COPY|USER|ENV|STOPSIGNAL|ENTRYPOINT|CMD) (\S.*)$/.exec(line);
    if (match === null) throw new Error(`no instruction: ${line}`);
    return { name: match[1] ?? '', argument: match[2] ?? '' };
  });
}

/** NAME=VALUE lines, and whether a comment stands above each group. */
async function environment(): Promise<Map<string, string>> {
  const values = new Map<string, string>();
  for (const block of (await read('deploy/gb10/producer.env')).trim().split(/\n\n+/)) {
    const lines = block.split('\n');
    const settings = lines.filter((line) => !line.startsWith('#'));
    if (settings.length > 0) expect(lines[0], block).toMatch(/^# /);
    for (const line of settings) {
      expect(line).toMatch(/^[A-Z][A-Z0-9_]*=\S+$/);
      const [name = '', value = ''] = line.split('=');
      expect(values.has(name), name).toBe(false);
      values.set(name, value);
    }
  }
  return values;
}

describe('deploy/gb10/Containerfile', () => {
  it('takes its base images from build arguments without a default, and refuses all but digests', async () => {
    const parsed = instructions(await read('deploy/gb10/Containerfile'));
    const bases = parsed.filter(({ name }) => name === 'FROM').map(({ argument }) => argument);
    expect(bases).toEqual(['${NODE_IMAGE} AS build', '${VLLM_IMAGE}']);
    const args = parsed.filter(({ name }) => name === 'ARG').map(({ argument }) => argument);
    expect(args.every((argument) => /^(NODE|VLLM)_IMAGE$/.test(argument))).toBe(true);
    for (const image of ['NODE_IMAGE', 'VLLM_IMAGE']) {
      const check = parsed.find(({ name, argument }) => name === 'RUN' && argument.includes(`"\${${image}}"`));
      const run = (value: string) => spawnSync('sh', ['-c', check?.argument ?? ''], { env: { [image]: value } }).status;
      expect(run(`registry.example/x@sha256:${'a'.repeat(64)}`)).toBe(0);
      expect(run('registry.example/x:latest')).toBe(1);
      expect(run('')).toBe(1);
    }
  });

  it('has no tag that moves, runs as nobody in particular, and starts the producer', async () => {
    const text = await read('deploy/gb10/Containerfile');
    expect(text).not.toMatch(/:latest|:stable|:nightly/);
    expect(text).not.toMatch(/curl|wget|https?:/);
    const parsed = instructions(text);
    const last = (wanted: string): string => parsed.filter(({ name }) => name === wanted).at(-1)?.argument ?? '';
    expect(last('USER')).toBe('10001:10001');
    expect(JSON.parse(last('ENTRYPOINT'))).toEqual([
      '/usr/local/bin/node',
      '/opt/muser/packages/gb10-producer/dist/main.js',
    ]);
    expect(JSON.parse(last('CMD'))).toEqual(['run', '--config', '/etc/muser/producer.json']);
  });

  // fault: slower-after-update
  it('installs with the package manager of the checkout and the vLLM that is tested', async () => {
    const text = await read('deploy/gb10/Containerfile');
    const { packageManager } = JSON.parse(await read('package.json')) as { packageManager: string };
    expect(text).toContain(`npx -y ${packageManager} install --frozen-lockfile`);
    const version = /'vllm==([\d.]+)'/.exec(await read('scripts/vllm-env.mjs'))?.[1];
    expect(text).toContain(`== '${version}'`);
  });
});

describe('deploy/gb10/producer.env and producer.json', () => {
  it('set what the producer knows', async () => {
    const known = await read('docs/CONFIG.md');
    for (const name of (await environment()).keys()) {
      if (name.startsWith('MUSER_')) expect(known).toContain(`\`${name}\``);
    }
    for (const key of Object.keys(JSON.parse(await read('deploy/gb10/producer.json')) as object)) {
      expect(known).toContain(`| \`${key}\` | \`MUSER_PRODUCER_`);
    }
  });

  it('have the figures of the plan for a GB10', async () => {
    const model = await findPlannedModel('muse-glimmer-30b', {});
    const plan = planProducer({ model, memoryBytes: 128 * 2 ** 30, promptTokens: null, requests: 4 });
    expect(plan.fits).toBe(true);
    const values = await environment();
    for (const { name, value } of [...plan.producer, ...plan.environment]) expect(values.get(name), name).toBe(value);
  });

  it('and the README explain every setting of the engine', async () => {
    const model = await findPlannedModel('muse-glimmer-30b', {});
    const plan = planProducer({ model, memoryBytes: 128 * 2 ** 30, promptTokens: null, requests: 4 });
    const readme = await read('deploy/gb10/README.md');
    for (const { name } of [...plan.engine, ...plan.environment]) expect(readme).toContain(`\`${name}\``);
  });
});

describe('deploy/gb10/muser-producer.service', () => {
  const systemd = spawnSync('systemd-analyze', ['--version']).status === 0;

  it('starts at most three times an hour, is hardened, and claims no watchdog that nobody feeds', async () => {
    const lines = (await read('deploy/gb10/muser-producer.service')).split('\n');
    for (const line of [
      'StartLimitIntervalSec=1h',
      'StartLimitBurst=3',
      'Restart=on-failure',
      'RestartPreventExitStatus=2',
      'NoNewPrivileges=yes',
      'ProtectSystem=strict',
      'MemorySwapMax=0',
      'CapabilityBoundingSet=',
    ]) {
      expect(lines).toContain(line);
    }
    expect(lines.some((line) => /^MemoryMax=\d+G$/.test(line))).toBe(true);
    expect(lines.some((line) => line.startsWith('OOMScoreAdjust='))).toBe(true);
    expect(lines.some((line) => line.startsWith('WatchdogSec'))).toBe(false);
    // Longer than the producer's own limit: 20 s for draining and 10 s for closing.
    const stop = lines.find((line) => line.startsWith('TimeoutStopSec='));
    expect(Number(/\d+/.exec(stop ?? '')?.[0])).toBeGreaterThan(30);
  });

  it.skipIf(!systemd)('is accepted by systemd-analyze', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'muser-unit-'));
    try {
      // The check wants a program that is there; where Node is installed differs.
      const text = (await read('deploy/gb10/muser-producer.service')).replace('/usr/bin/node', process.execPath);
      const unit = join(folder, 'muser-producer.service');
      await writeFile(unit, text);
      const verified = spawnSync('systemd-analyze', ['verify', '--man=no', unit], { encoding: 'utf8' });
      expect(verified.stderr.split('\n').filter((line) => line.includes('muser-producer'))).toEqual([]);
      expect(verified.status).toBe(0);
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});
