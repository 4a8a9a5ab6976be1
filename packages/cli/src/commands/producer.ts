import type { Command } from 'commander';
import { registerProducerPlan } from './producer-plan.js';

export function registerProducer(program: Command): void {
  const producer = program.command('producer').description('The prefill side of a hand-off, on a GB10.');
  registerProducerPlan(producer);
}
