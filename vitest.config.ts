import { readdirSync } from 'node:fs';
import { defineConfig } from 'vitest/config';

/** Tests that take minutes are named `*.slow.test.ts` and run only when asked for. */
const slow = process.env['MUSER_SLOW_TESTS'] === '1';
const folders = [...readdirSync('packages').map((name) => `packages/${name}`), 'native/metal', 'e2e'];

export default defineConfig({
  test: {
    // Two engines with two threads each on two cores come to a standstill, so files run one after another.
    maxWorkers: 1,
    fileParallelism: false,
    // On a busy machine, processes of a whole system lose sight of one another for a moment. The report names what was retried.
    retry: slow ? 1 : 0,
    testTimeout: slow ? 300_000 : 60_000,
    hookTimeout: slow ? 300_000 : 60_000,
    // Vitest's own limit is a second, in which a busy machine does not even get through a handshake.
    expect: { poll: { timeout: 30_000 } },
    projects: folders.map((root) => ({
      extends: true,
      test: {
        name: root === 'native/metal' ? '@muser/metal' : `@muser/${root.split('/').at(-1)}`,
        root,
        include: [slow ? 'test/**/*.slow.test.ts' : 'test/**/*.test.ts'],
        exclude: slow ? [] : ['test/**/*.slow.test.ts'],
      },
    })),
  },
});
