import { join } from 'node:path';

import { createLogger, systemClock, type Clock } from '@muser/service-kit';
import { onTestFinished } from 'vitest';

import { startCoordinator, type RunningCoordinator } from '../../src/coordinator.js';
import { temporaryFolder } from './folders.js';
import { Operator } from './operator.js';

export interface TestCoordinator extends RunningCoordinator {
  stateDir: string;
  operator: Operator;
}

/** A real coordinator in this process that ends with the test. */
export async function launchCoordinator(options: { stateDir?: string; clock?: Clock } = {}): Promise<TestCoordinator> {
  const stateDir = options.stateDir ?? join(await temporaryFolder(), 'state');
  const coordinator = await startCoordinator({
    config: { stateDir, httpHost: '127.0.0.1', httpPort: 0, grpcHost: '127.0.0.1', grpcPort: 0 },
    clock: options.clock ?? systemClock,
    logger: createLogger('test', 'silent'),
  });
  onTestFinished(() => coordinator.close());
  return { ...coordinator, stateDir, operator: await Operator.at(coordinator, stateDir) };
}
