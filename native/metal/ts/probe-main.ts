// Entry of the probe's child process: prints one JSON object (an AddonProbe) and ends.
import { loadAddon } from './native.js';

try {
  const description = loadAddon().describe();
  process.stdout.write(JSON.stringify({ ok: true, ...description }));
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
