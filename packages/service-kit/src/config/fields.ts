import { z } from 'zod';

import { LOG_LEVELS } from '../logging.js';

/** Settings that every process has, so that their defaults and words exist once. */
export const fields = {
  logLevel: () => z.enum(LOG_LEVELS).default('info').meta({ description: 'Least severe log line that is written.' }),
  exitWithParent: () =>
    z
      .boolean()
      .default(false)
      .meta({ description: 'Close when standard input ends: the process that started this one is gone.' }),
  port: (description: string) =>
    z
      .int()
      .min(0)
      .max(65_535)
      .default(0)
      .meta({ description: `${description} 0 takes any free one.` }),
  host: (description: string) => z.string().min(1).max(255).default('127.0.0.1').meta({ description }),
  stateDir: () => z.string().min(1).max(4096).meta({ description: 'Folder for everything this process keeps.' }),
};
