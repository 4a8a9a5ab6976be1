// Makes a checkout ready to run: dependencies, native addon, TypeScript. Each step is skipped when nothing that it
// depends on has changed, so a second run takes a fraction of a second. Needs nothing but Node, git, cmake and a C++ compiler.
import { existsSync } from 'node:fs';
import { dependencyInputs, digestOf, typescriptInputs } from './lib/inputs.mjs';
import { withLock } from './lib/lock.mjs';
import { ROOT, PNPM, fail, run, say } from './lib/run.mjs';
import { readStamp, writeStamp } from './lib/stamp.mjs';

const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 19))
  fail(`muser needs Node 20.19 or newer; this is ${process.versions.node}`);

await withLock('bootstrap', async () => {
  await step('dependencies', digestOf(dependencyInputs(), process.version, process.arch), `${ROOT}/node_modules`, () =>
    run('npx', ['-y', PNPM, 'install', '--frozen-lockfile', '--reporter=append-only'], {
      advice: 'Is a package registry reachable?',
    }),
  );
  await run('node', ['native/metal/scripts/build.mjs'], { show: true });
  await step('typescript', digestOf(typescriptInputs()), `${ROOT}/packages/cli/dist/main.js`, () =>
    run('node', ['node_modules/typescript/bin/tsc', '-b'], { show: true }),
  );
});

/** Runs `work` unless the stamp says that it was done for the same inputs and `product` is still there. */
async function step(name, digest, product, work) {
  if (readStamp(name) === digest && existsSync(product)) return;
  const started = Date.now();
  say(`${name}: working${name === 'dependencies' ? ' (the first time takes a few minutes)' : ''}`);
  writeStamp(name, '');
  await work();
  writeStamp(name, digest);
  say(`${name}: done in ${((Date.now() - started) / 1000).toFixed(1)} s`);
}
