// Builds the engine addon: node native/metal/scripts/build.mjs [--sanitize] [--tools] [--force]
// Output: build/muser_engine.node, or build/sanitize/muser_engine.node. Does nothing when nothing has changed.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SWITCHES = new Set(process.argv.slice(2));
const SANITIZE = SWITCHES.has('--sanitize');
const TOOLS = SWITCHES.has('--tools');
const BUILD = join(ROOT, 'build');
const WORK = join(BUILD, SANITIZE ? 'cmake-sanitize' : 'cmake');
const OUTPUT = join(BUILD, SANITIZE ? 'sanitize' : '.', 'muser_engine.node');
const STAMP = join(BUILD, SANITIZE ? 'stamp-sanitize' : 'stamp');
const JOBS = '2';
const PLATFORM_PACKAGES = { 'linux-x64': 'linux-x64', 'linux-arm64': 'linux-arm64', 'darwin-arm64': 'mac-arm64-metal' };

for (const name of SWITCHES) {
  if (!['--sanitize', '--tools', '--force'].includes(name)) fail(`unknown switch ${name}`);
}

const packages = findPackages();
const digest = inputsDigest();
if (!SWITCHES.has('--force') && existsSync(OUTPUT) && existsSync(STAMP) && readStamp().has(digest)) process.exit(0);

const started = Date.now();
say(`building${SANITIZE ? ' with sanitizers' : ''}${TOOLS ? ' with tools and C++ tests' : ''}`);
checkTools();
extractHeaders();
configure();
run('cmake', ['--build', WORK, '-j', JOBS]);
mkdirSync(dirname(OUTPUT), { recursive: true });
// A process that has the old file loaded keeps it: a new file takes the name.
copyFileSync(join(WORK, 'muser_engine.node'), `${OUTPUT}.new`);
renameSync(`${OUTPUT}.new`, OUTPUT);
writeFileSync(STAMP, [digest, ...(TOOLS ? [inputsDigest(false)] : [])].join('\n'));
say(`done in ${((Date.now() - started) / 1000).toFixed(1)} s`);

function findPackages() {
  const require = createRequire(join(ROOT, 'package.json'));
  const platform = `${process.platform}-${process.arch}`;
  const name = PLATFORM_PACKAGES[platform];
  if (name === undefined) fail(`there are no prebuilt llama.cpp libraries for ${platform}`);
  try {
    const owner = require.resolve('node-llama-cpp');
    const nodeLlama = join(dirname(owner), '..');
    const platformMain = createRequire(owner).resolve(`@node-llama-cpp/${name}`);
    return {
      nodeLlama,
      version: JSON.parse(readFileSync(join(nodeLlama, 'package.json'), 'utf8')).version,
      libraries: join(dirname(platformMain), '..', 'bins', name),
      addonApi: dirname(require.resolve('node-addon-api/package.json')),
      apiHeaders: join(dirname(require.resolve('node-api-headers/package.json')), 'include'),
    };
  } catch (error) {
    fail(`a package is missing (${error.message.split('\n')[0]})`, 'Run npm run bootstrap in the repository root.');
  }
}

function inputsDigest(tools = TOOLS) {
  const hash = createHash('sha256');
  hash.update(JSON.stringify([packages, process.version.split('.')[0], process.arch, tools]));
  const folders = ['src', 'scripts', ...(tools ? ['tools', 'test/cpp'] : [])];
  for (const file of [join(ROOT, 'CMakeLists.txt'), ...folders.flatMap((folder) => filesBelow(join(ROOT, folder)))]) {
    hash.update(`\0${relative(ROOT, file)}\0`).update(readFileSync(file));
  }
  return hash.digest('hex');
}

function filesBelow(folder) {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true })
    .flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? filesBelow(path) : [path];
    })
    .sort();
}

function readStamp() {
  return new Set(readFileSync(STAMP, 'utf8').split('\n'));
}

function checkTools() {
  const mac = process.platform === 'darwin';
  const advice = mac
    ? 'Install the compiler with `xcode-select --install` and cmake with `brew install cmake`.'
    : 'On Debian or Ubuntu: sudo apt-get install cmake g++ git. On Fedora: sudo dnf install cmake gcc-c++ git.';
  const there = (command) => spawnSync(command, ['--version'], { stdio: 'ignore' }).status === 0;
  for (const command of ['git', 'cmake']) {
    if (!there(command)) fail(`${command} is not installed`, advice);
  }
  const compilers = process.env.CXX ? [process.env.CXX] : ['c++', 'g++', 'clang++'];
  if (!compilers.some(there)) fail('no C++ compiler is installed', advice);
}

/** Takes only the public headers out of the source that node-llama-cpp bundles. */
function extractHeaders() {
  const target = join(BUILD, 'llama');
  const stamp = join(target, 'version');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === packages.version) return;
  say("extracting llama.cpp's headers");
  mkdirSync(BUILD, { recursive: true });
  const scratch = mkdtempSync(join(BUILD, 'bundle-'));
  try {
    const bundle = join(packages.nodeLlama, 'llama', 'gitRelease.bundle');
    run('git', ['-c', 'advice.detachedHead=false', 'clone', '-q', '--no-checkout', bundle, scratch]);
    run('git', ['-C', scratch, 'checkout', '-q', 'HEAD', '--', 'include', 'ggml/include', 'LICENSE']);
    rmSync(join(scratch, '.git'), { recursive: true, force: true });
    writeFileSync(join(scratch, 'version'), packages.version);
    rmSync(target, { recursive: true, force: true });
    renameSync(scratch, target);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function configure() {
  const ninja = spawnSync('ninja', ['--version'], { stdio: 'ignore' }).status === 0;
  const generator = existsSync(join(WORK, 'CMakeCache.txt')) ? [] : ['-G', ninja ? 'Ninja' : 'Unix Makefiles'];
  const on = (value) => (value ? 'ON' : 'OFF');
  run('cmake', [
    ...['-S', ROOT, '-B', WORK, ...generator],
    `-DMUSER_LLAMA_HEADERS=${join(BUILD, 'llama')}`,
    `-DMUSER_LLAMA_LIBRARIES=${packages.libraries}`,
    `-DMUSER_NODE_API_HEADERS=${packages.apiHeaders}`,
    `-DMUSER_NODE_ADDON_API=${packages.addonApi}`,
    `-DMUSER_TOOLS=${on(TOOLS)}`,
    `-DMUSER_SANITIZE=${on(SANITIZE)}`,
  ]);
}

/** Runs quietly; shows everything when it fails. */
function run(command, args) {
  const result = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 });
  if (result.status === 0) return;
  process.stderr.write(`${result.stdout ?? ''}${result.stderr ?? ''}`);
  fail(`${command} ${args[0]} failed${result.error ? `: ${result.error.message}` : ''}`);
}

function say(text) {
  process.stdout.write(`addon: ${text}\n`);
}

function fail(reason, advice) {
  process.stderr.write(`addon: ${reason}\n${advice ? `${advice}\n` : ''}`);
  process.exit(1);
}
