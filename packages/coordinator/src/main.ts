import {
  createLogger,
  loadConfig,
  printReady,
  runCommandLine,
  runProcess,
  systemClock,
  type Command,
} from '@muser/service-kit';

import { configSchema, ENV_PREFIX } from './config.js';
import { startCoordinator } from './coordinator.js';

const NAME = 'coordinator';

const run: Command = {
  words: ['run'],
  flags: ['config'],
  async run({ config: file = '' }) {
    const config = await loadConfig(configSchema, { file, env: process.env, envPrefix: ENV_PREFIX });
    return await runProcess({
      name: NAME,
      logger: createLogger(NAME, config.logLevel),
      exitWithParent: config.exitWithParent,
      async start({ logger }) {
        const coordinator = await startCoordinator({ config, clock: systemClock, logger });
        const { http, grpc, nodeId } = coordinator;
        printReady({ ready: true, pid: process.pid, http, grpc, nodeId });
        return coordinator;
      },
    });
  },
};

process.exit(await runCommandLine({ name: NAME, argv: process.argv.slice(2), commands: [run] }));
