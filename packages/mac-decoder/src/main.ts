import { createLogger, loadConfig, printReady, runCommandLine, runProcess } from '@muser/service-kit';
import { identityCommands } from '@muser/transport';
import { decoderConfigSchema, ENV_PREFIX } from './config.js';
import { startDecoder } from './decoder.js';

/** Beyond the time for draining: closing the server and freeing the engine. */
const CLOSE_MARGIN_MS = 10_000;

async function run(file: string): Promise<number> {
  const config = await loadConfig(decoderConfigSchema, { file, env: process.env, envPrefix: ENV_PREFIX });
  return runProcess({
    name: 'decoder',
    logger: createLogger('decoder', config.logLevel),
    exitWithParent: config.exitWithParent,
    closeLimitMs: config.drainMs + CLOSE_MARGIN_MS,
    start: async ({ signal, logger }) => {
      const decoder = await startDecoder(config, logger, signal);
      printReady({ ready: true, pid: process.pid, ...decoder.ready });
      return decoder;
    },
  });
}

const exitCode = await runCommandLine({
  name: 'mac-decoder',
  argv: process.argv.slice(2),
  commands: [
    ...identityCommands('decoder'),
    { words: ['run'], flags: ['config'], run: ({ config = '' }) => run(config) },
  ],
});
// Not only its code: a close that went over its limit may have left something that keeps the process alive.
process.exit(exitCode);
