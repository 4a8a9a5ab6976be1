import { type Command, createLogger, loadConfig, printReady, runCommandLine, runProcess } from '@muser/service-kit';
import { formatTarget, identityCommands } from '@muser/transport';

import { openBackend } from './backend/open-backend.js';
import { ENV_PREFIX, producerConfigSchema } from './config.js';
import { startProducer } from './producer.js';
import { qualifyCommands } from './qualify/commands.js';

/** Beyond the time for draining: closing the listener and freeing the engine. */
const CLOSE_MARGIN_MS = 10_000;

const run: Command = {
  words: ['run'],
  flags: ['config'],
  async run({ config: file = '' }) {
    const config = await loadConfig(producerConfigSchema, { file, env: process.env, envPrefix: ENV_PREFIX });
    return runProcess({
      name: 'producer',
      logger: createLogger('producer', config.logLevel),
      exitWithParent: config.exitWithParent,
      closeLimitMs: config.drainMs + CLOSE_MARGIN_MS,
      async start({ signal, logger }) {
        let isReady = false;
        const started = startProducer(
          config,
          logger.child({ producer: config.name }),
          signal,
          openBackend,
          (name, ms) => {
            // Only before the ready line, which is the last one: nobody may be reading after it.
            if (!isReady) printReady({ milestone: name, ms });
          },
        );
        const producer = await started;
        isReady = true;
        printReady({
          ready: true,
          pid: process.pid,
          address: formatTarget(producer.address),
          nodeId: producer.nodeId,
          backend: producer.backend.name,
          model: producer.backend.model.identity.name,
          paused: producer.control.state === 'paused',
        });
        return producer;
      },
    });
  },
};

const commands = [...identityCommands('producer'), ...qualifyCommands, run];
process.exit(await runCommandLine({ name: 'gb10-producer', argv: process.argv.slice(2), commands }));
