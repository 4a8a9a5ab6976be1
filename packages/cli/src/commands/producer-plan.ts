import { InvalidArgumentError, type Command } from 'commander';
import { wholeNumber } from '../arguments.js';
import { EXIT } from '../exit.js';

interface PlanFlags {
  memory: number;
  model: string;
  promptTokens?: number;
  requests: number;
  json?: true;
}

export function registerProducerPlan(producer: Command): void {
  producer
    .command('plan')
    .summary('how the memory of a producer is divided, and why')
    .description(
      "Works out the memory of a producer from the model's geometry: weights, KV cache, staging, what is left for the " +
        'system; with every setting of the engine and its reason. It looks at no GPU.',
    )
    .requiredOption('--memory <size>', 'memory of the machine, for example 128GiB', memorySize)
    .requiredOption('--model <model>', 'Hugging Face folder, manifest or its name, or muse-glimmer-30b')
    .option('--prompt-tokens <n>', 'longest prompt (default: what the model allows)', wholeNumber(2, 131_072))
    .option('--requests <n>', 'prefills at once', wholeNumber(1, 64), 4)
    .option('--json', 'print the plan as one JSON object, in bytes')
    .addHelpText(
      'after',
      `
Examples:
  $ muser producer plan --memory 128GiB --model muse-glimmer-30b
  $ muser producer plan --memory 128GiB --model ~/.muser/models/muse-glimmer-30b-nvfp4 --prompt-tokens 65536 --json

Exit codes: 0 it fits, 1 it does not, or the model cannot be used, 2 wrong usage`,
    )
    .action(async (flags: PlanFlags) => {
      const { planCommand } = await import('../producer-plan/command.js');
      const plan = await planCommand({
        model: flags.model,
        memoryBytes: flags.memory,
        promptTokens: flags.promptTokens ?? null,
        requests: flags.requests,
        json: flags.json ?? false,
      });
      process.exitCode = plan.fits ? EXIT.ok : EXIT.failed;
    });
}

/** 128GiB, 96GB or a number of bytes; from 1 GiB to 64 TiB. */
function memorySize(text: string): number {
  const units: Record<string, number> = { '': 1, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, MB: 1e6, GB: 1e9, TB: 1e12 };
  const match = /^(\d+(?:\.\d+)?) ?([A-Za-z]*)$/.exec(text);
  const bytes = Math.floor(Number(match?.[1]) * (units[match?.[2] ?? ''] ?? NaN));
  if (bytes >= 2 ** 30 && bytes <= 2 ** 46) return bytes;
  throw new InvalidArgumentError('It must be a size from 1GiB to 64TiB, for example 128GiB.');
}
