import { ROOT, run } from '../run.mjs';

/**
 * @typedef {object} Target
 * @property {string} name
 * @property {string} corpus folder of inputs to begin with, relative to the root
 * @property {string | null} module a TypeScript file with `fuzz(input)` and `seeds()`, where the target is one
 * @property {() => Promise<import('@muser/testing').TargetCommand>} prepare builds what is needed
 */

/** By what is fuzzed; each group shares its time among its targets. */
export const GROUPS = {
  protocol: [
    script('packages/protocol/fuzz', 'messages'),
    script('packages/protocol/fuzz', 'transfer'),
    script('packages/protocol/fuzz', 'tickets'),
    script('packages/mac-decoder/fuzz', 'chat-bodies'),
    script('packages/coordinator/fuzz', 'operator-bodies'),
  ],
  bridge: [
    script('packages/gb10-producer/fuzz', 'frames'),
    {
      name: 'frames-python',
      corpus: 'packages/gb10-producer/fuzz/corpus/frames',
      module: null,
      // Needs nothing but Python itself.
      prepare: async () => ({
        command: 'python3',
        args: ['-B', 'packages/gb10-producer/python/fuzz/frames_target.py'],
        cwd: ROOT,
        env: { PYTHONHASHSEED: '0' },
      }),
    },
  ],
  state: [native('stage'), native('ledger'), script('native/metal/fuzz', 'calls')],
};

/** The targets that a name means: a group, one target, or all. */
export function targetsOf(name) {
  const all = Object.values(GROUPS).flat();
  if (name === 'all') return all;
  return GROUPS[name] ?? all.filter((target) => target.name === name);
}

export function groupOf(target) {
  return Object.values(GROUPS).find((group) => group.includes(target)) ?? [target];
}

/** src/kv with sanitizers and coverage, in a build of its own that needs nothing of llama.cpp. */
function native(name) {
  const folder = 'native/metal/fuzz';
  const build = 'native/metal/build/cmake-fuzz';
  return {
    name,
    corpus: `${folder}/corpus/${name}`,
    module: null,
    prepare: async () => {
      await run('cmake', ['-S', folder, '-B', build]);
      await run('cmake', ['--build', build, '--target', `fuzz_${name}`, '-j', '2']);
      return { command: `${build}/fuzz_${name}`, args: [], cwd: ROOT };
    },
  };
}

function script(folder, name) {
  const module = `${folder}/${name}.ts`;
  return {
    name,
    corpus: `${folder}/corpus/${name}`,
    module,
    prepare: async () => ({
      command: process.execPath,
      args: ['--enable-source-maps', 'scripts/lib/fuzz/host.mjs', module],
      cwd: ROOT,
    }),
  };
}
