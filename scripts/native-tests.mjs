// Builds the C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs them.
import { ROOT, run } from './lib/run.mjs';

const build = `${ROOT}/native/metal/build/sanitize`;
await run('node', ['native/metal/scripts/build.mjs', '--sanitize', '--tools'], { show: true });
const code = await run('ctest', ['--test-dir', build, '--output-on-failure', '--no-tests=error'], { show: true, mayFail: true });
process.stdout.write(code === 0 ? '1 passed, 0 failed\n' : '0 passed, 1 failed\n');
process.exit(code);
