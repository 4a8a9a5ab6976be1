import type { Command } from 'commander';
import { registerModelsCheck } from './models-check.js';
import { registerModelsList } from './models-list.js';
import { registerModelsPin } from './models-pin.js';
import { registerModelsPull } from './models-pull.js';
import { registerModelsVerify } from './models-verify.js';

export function registerModels(program: Command): void {
  const models = program.command('models').description('Model files: fetch, list, verify, and look at what they are.');
  registerModelsPull(models);
  registerModelsList(models);
  registerModelsVerify(models);
  registerModelsPin(models);
  registerModelsCheck(models);
}
