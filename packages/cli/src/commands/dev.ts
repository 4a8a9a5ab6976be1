import { type Command, Option } from 'commander';
import { wholeNumber } from '../arguments.js';

interface DevFlags {
  state?: string;
  model?: string;
  producer: 'llama' | 'vllm';
  producerModel?: string;
  port?: number;
  json?: true;
  prefillTokensPerSecond?: number;
}

export function registerDev(program: Command): void {
  program
    .command('dev')
    .summary('run the whole system on this machine')
    .description(
      'Starts a coordinator, a producer and a decoder as three processes of this machine. One Ctrl-C stops all of them, a ' +
        'second one kills them. They share the cores, so remote prefill is not faster here.',
    )
    .option('--state <dir>', 'keeps keys, registry and logs (default: $MUSER_STATE, else ~/.muser)')
    .option('--model <file>', 'GGUF file that both engines load (default: muse-nano, which is in the repository)')
    .addOption(
      new Option('--producer <engine>', 'what the producer prefills with; vllm is installed first when it is not there')
        .choices(['llama', 'vllm'])
        .default('llama'),
    )
    .option(
      '--producer-model <path>',
      "the producer's model, when it is not --model: for vllm a checkpoint's folder (default: muse-nano)",
    )
    .option(
      '--port <n>',
      'port of the OpenAI-compatible interface (default: 11711, or a free one)',
      wholeNumber(0, 65_535),
    )
    .option('--json', 'print one JSON line on standard output when everything is ready')
    .option('--prefill-tokens-per-second <n>', 'slow the producer down to this rate', wholeNumber(1, 1_000_000))
    .addHelpText(
      'after',
      `
Examples:
  $ muser dev
  $ muser dev --state ./state --port 8080
  $ muser dev --json --model ~/models/model.gguf

Exit codes:
  0    stopped by Ctrl-C
  1    the start failed, or the decoder ended by itself
  2    wrong usage or configuration
  130  stopped while it was starting`,
    )
    .action(async (flags: DevFlags) => {
      const [{ dev }, { DEFAULT_MODEL }] = await Promise.all([import('../dev/dev.js'), import('../system/paths.js')]);
      process.exitCode = await dev({
        state: flags.state,
        model: flags.model ?? DEFAULT_MODEL,
        engine: flags.producer,
        producerModel: flags.producerModel ?? null,
        port: flags.port ?? null,
        json: flags.json ?? false,
        prefillTokensPerSecond: flags.prefillTokensPerSecond ?? null,
      });
    });
}
