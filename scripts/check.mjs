// `npm run check`: everything that can be said about the code without running it.
import { run, say } from './lib/run.mjs';

const checks = [
  ['types', ['node_modules/typescript/bin/tsc', '-b']],
  ['types of tests', ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.tests.json']],
  ['lint', ['node_modules/eslint/bin/eslint.js', '--max-warnings=0', '.']],
  ['format', ['node_modules/prettier/bin/prettier.cjs', '--check', '--log-level=warn', '.']],
  ['tables made from tests', ['scripts/test-tables.mjs']],
  ['figures of limits', ['scripts/limits.mjs']],
];

let failed = 0;
for (const [name, args] of checks) {
  const code = await run('node', args, { show: true, mayFail: true });
  say(`${name}: ${code === 0 ? 'ok' : 'FAILED'}`);
  if (code !== 0) failed += 1;
}
process.stdout.write(`${checks.length - failed} passed, ${failed} failed\n`);
process.exit(failed === 0 ? 0 : 1);
