// The steps of `scripts/ci.mjs`. Tests come from the folders and file names, so a new one cannot be forgotten here.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { ROOT } from './run.mjs';

/** Packages whose tests take a few seconds each share one step. */
const SMALL = ['protocol', 'service-kit', 'testing', 'transport'];
/** Slow tests that sleep most of the time: they wait for a deadline or for a slow link. */
const WAITS = /slow-link|silence|stuck-worker/;
const WITHOUT_VLLM = /needles|slow-link|silence|stuck-worker|cancel|draining/;
/** Left to `.ci/run --all`: minutes each, and what they show at length is shown in short by steps that always run. */
const LONG = /architectures|needles|pause|qualify|quantizations|vllm-failures/;
/** It quantizes a model with a tool that is built beside the C++ tests. */
const WITH_TOOLS = /quantizations/;

/** Measured, on two busy cores; only the order depends on it. */
const SECONDS = {
  'python-vllm': 400,
  'slow-vllm': 330,
  'tests-gb10-producer': 280,
  links: 280,
  faults: 200,
  'tests-e2e': 220,
  'tests-mac-decoder': 220,
  'tests-metal': 190,
  native: 190,
  addon: 150,
};
const USUAL_SECONDS = 100;

/**
 * `waits`: takes next to no processor time. `needs`: names of steps that have to end before.
 *
 * @param whole everything, also what takes long
 */
export function ciSteps(whole) {
  const scripts = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8')).scripts;
  const built = ['setup'];
  const withVllm = ['setup', 'install-vllm'];
  const all = [
    // A download of gigabytes, which needs nothing of what the set-up makes.
    { name: 'install-vllm', command: ['node', 'scripts/vllm-env.mjs'], needs: [], waits: true },
    { name: 'setup', command: ['node', 'scripts/bootstrap.mjs'], needs: [] },
    { name: 'check', command: ['node', 'scripts/check.mjs'] },
    { name: 'native', command: ['node', 'scripts/native-tests.mjs', 'plain'] },
    ...(whole ? [{ name: 'addon', command: ['node', 'scripts/native-tests.mjs', 'addon'] }] : []),
    { name: 'python', command: ['node', 'scripts/python-tests.mjs', 'quick'], needs: withVllm },
    { name: 'python-vllm', command: ['node', 'scripts/python-tests.mjs', 'vllm'], needs: withVllm },
    ...quickTests(),
    ...slowTests(whole, (file) => (WITH_TOOLS.test(file) ? ['native'] : WITHOUT_VLLM.test(file) ? built : withVllm)),
    ...faultTests(whole, whole ? withVllm : built).filter(({ script }) => script in scripts),
  ];
  return all.map(({ name, command, needs = built, waits = false }) => {
    return { name, command, needs, waits, seconds: SECONDS[name] ?? USUAL_SECONDS };
  });
}

function quickTests() {
  const packages = readdirSync(`${ROOT}/packages`).filter((name) => !SMALL.includes(name));
  const step = (name, projects) => ({
    name: `tests-${name}`,
    command: ['npm', 'test', '--', ...projects.map((project) => `--project=@muser/${project}`)],
  });
  return [...packages, 'metal', 'e2e'].map((name) => step(name, [name])).concat(step('small', SMALL));
}

function slowTests(whole, needsOf) {
  const files = execFileSync('git', ['ls-files', '*.slow.test.ts'], { cwd: ROOT, encoding: 'utf8' }).trim().split('\n');
  const wanted = files.filter((file) => whole || !LONG.test(file));
  return wanted.map((file) => ({
    name: `slow-${file.split('/').at(-1).replace('.slow.test.ts', '')}`,
    command: ['node', 'scripts/test.mjs', '--slow', file],
    waits: WAITS.test(file),
    needs: needsOf(file),
  }));
}

/** A hand-off under faults, on slow links, with random bytes, and for long. */
function faultTests(whole, needs) {
  const step = (script, more, options) => ({
    name: script.replace('test:', ''),
    script,
    command: ['npm', 'run', '--silent', script, ...more],
    ...options,
  });
  return [
    // Nearly every fault, in one of twelve phases and with one backend; the whole matrix takes ten minutes.
    step('test:faults', whole ? [] : ['--', '--backend', 'llama', '--only', '/middle chunk', '--seed', '7'], { needs }),
    step('test:links', [], { waits: true }),
    step('fuzz', ['--', 'all', '--seconds', '30'], {}),
    step('soak', ['--', '--transfers', whole ? '500' : '12'], {}),
  ];
}
