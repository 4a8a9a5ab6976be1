import { formatCount, formatTable } from '../format.js';
import { runCommand } from '../models/run.js';
import { findPlannedModel } from './models.js';
import { planProducer, type ProducerPlan, type Setting } from './plan.js';

export interface PlanCommand {
  model: string;
  memoryBytes: number;
  promptTokens: number | null;
  requests: number;
  json: boolean;
}

export async function planCommand(command: PlanCommand): Promise<ProducerPlan> {
  return runCommand(
    command.json,
    async () => planProducer({ ...command, model: await findPlannedModel(command.model, process.env) }),
    planText,
  );
}

export function planText(plan: ProducerPlan): string {
  const { memory } = plan;
  const shares: [string, number, string][] = [
    ['weights', memory.weights, ''],
    [
      'KV cache',
      memory.kvCache,
      `${plan.requests} prompts at once, and one kept: ${formatCount(plan.prefixCacheTokens)} tokens`,
    ],
    ['engine', memory.engineOverhead, 'context, workspaces, graphs, one step; an estimate'],
    ['staging', memory.staging, 'window rows and pinned memory of what is being sent'],
    ['processes', memory.processes, 'producer and Python; an estimate'],
    ['headroom', memory.headroom, `at least ${gib(plan.leastHeadroom)} must stay with the system`],
  ];
  return [
    `${plan.model}: prompts of at most ${formatCount(plan.promptTokens)} tokens`,
    '',
    formatTable(
      shares.map(([name, bytes, note]) => [name, gib(bytes), note]),
      [1],
    ),
    '',
    `One prompt of that length sends ${gib(plan.kvBytesSent)} of KV and holds ${gib(plan.kvBytesHeld)} while it runs.`,
    '',
    "Producer's environment",
    ...[...plan.producer, ...plan.environment].flatMap(settingLines),
    'What the producer tells vLLM',
    ...plan.engine.flatMap(settingLines),
    '',
    plan.problem === null ? 'The plan fits.' : `The plan does not fit: ${plan.problem}.`,
  ].join('\n');
}

function settingLines({ name, value, reason }: Setting): string[] {
  return [`  ${name}=${value}`, `    ${reason}`];
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}
