import { type Command, Option } from 'commander';
import { wholeNumber } from '../arguments.js';
import { registerProducerPlan } from './producer-plan.js';
import { registerProducerQualify } from './producer-qualify.js';

interface ProducerFlags {
  backend: 'llama' | 'vllm';
  model?: string;
  promptTokens?: number;
  requests: number;
  state?: string;
  host: string;
  port: number;
  json?: true;
}

export function registerProducer(program: Command): void {
  const producer = program
    .command('producer')
    .summary('run a producer on this machine; plan its memory; qualify it')
    .description(
      'The prefill side of a hand-off, on a GB10. Without a further word it runs an enrolled producer until Ctrl-C and shows ' +
        'each stage of its start. vLLM is installed first when it is not there.',
    )
    // `muser producer plan --model` is the plan's.
    .enablePositionalOptions()
    .addOption(new Option('--backend <engine>', 'what prefills').choices(['llama', 'vllm']).default('vllm'))
    .option(
      '--model <model>',
      "for vllm a model's name, a hub's OWNER/NAME or a checkpoint's folder, for llama a GGUF file (default: muse-nano)",
    )
    .option('--prompt-tokens <n>', 'longest prompt, for vllm (default: what the model allows)', wholeNumber(2, 131_072))
    .option('--requests <n>', 'prefills at once, for vllm', wholeNumber(1, 64), 4)
    .option('--state <dir>', 'keeps its keys, configuration and log (default: $MUSER_STATE, else ~/.muser)')
    .option('--host <address>', 'address that decoders and the coordinator dial', '127.0.0.1')
    .option('--port <n>', 'its port; 0 takes a free one', wholeNumber(0, 65_535), 0)
    .option('--json', 'print one JSON line on standard output when it is ready')
    .addHelpText(
      'after',
      `
Examples:
  $ muser producer --backend vllm --model RedHatAI/Muse-Glimmer-30B-NVFP4 --host 10.0.0.2 --port 11712
  $ muser producer --backend llama --model ~/models/model.gguf --state ./producer

With vllm on a GPU its memory is divided as \`muser producer plan\` says; MUSER_PRODUCER_... variables (docs/CONFIG.md)
go before that. It must be enrolled: docs/OPERATIONS.md, "A producer of its own".

Exit codes: 0 stopped by Ctrl-C, 1 the start failed or it ended by itself, 2 wrong usage or configuration, 130 stopped
while it was starting`,
    )
    .action(async (flags: ProducerFlags) => {
      const { runProducer } = await import('../producer-run/run.js');
      process.exitCode = await runProducer({
        engine: flags.backend,
        model: flags.model ?? null,
        promptTokens: flags.promptTokens ?? null,
        requests: flags.requests,
        state: flags.state,
        host: flags.host,
        port: flags.port,
        json: flags.json ?? false,
      });
    });
  registerProducerPlan(producer);
  registerProducerQualify(producer);
}
