import { text } from 'node:stream/consumers';

import { createLogger, loadConfig, printReady, runCommandLine, runProcess } from '@muser/service-kit';
import { createIdentity, formatTarget, type IdentityBundle, installIdentity } from '@muser/transport';

import { ENV_PREFIX, producerConfigSchema } from './config.js';
import { startProducer } from './producer.js';

/** Beyond the time for draining: closing the listener and freeing the engine. */
const CLOSE_MARGIN_MS = 10_000;

async function run(file: string): Promise<number> {
  const config = await loadConfig(producerConfigSchema, { file, env: process.env, envPrefix: ENV_PREFIX });
  return runProcess({
    name: 'producer',
    logger: createLogger('producer', config.logLevel),
    exitWithParent: config.exitWithParent,
    closeLimitMs: config.drainMs + CLOSE_MARGIN_MS,
    start: async ({ signal, logger }) => {
      const producer = await startProducer(config, logger.child({ producer: config.name }), signal);
      printReady({
        ready: true,
        pid: process.pid,
        address: formatTarget(producer.address),
        nodeId: producer.nodeId,
        backend: producer.backend.name,
        model: producer.backend.model.identity.name,
      });
      return producer;
    },
  });
}

process.exitCode = await runCommandLine({
  name: 'gb10-producer',
  argv: process.argv.slice(2),
  commands: [
    {
      words: ['identity', 'create'],
      flags: ['dir'],
      run: async ({ dir = '' }) => {
        printReady({ ...(await createIdentity(dir, 'producer')) });
        return 0;
      },
    },
    {
      words: ['identity', 'install'],
      flags: ['dir'],
      run: async ({ dir = '' }) => {
        await installIdentity(dir, JSON.parse(await text(process.stdin)) as IdentityBundle);
        return 0;
      },
    },
    { words: ['run'], flags: ['config'], run: ({ config = '' }) => run(config) },
  ],
});
