import { type Command, Option } from 'commander';

export function registerDemo(program: Command): void {
  program
    .command('demo')
    .summary('answer one question by local and by remote prefill, side by side')
    .description(
      'Starts a system of its own in a temporary folder, asks one question about a document of 8,000 tokens by local and by ' +
        'remote prefill, compares, and cleans up.',
    )
    .option('--json', 'end with one JSON line')
    .addOption(
      new Option('--producer <engine>', 'what prefills remotely; vllm is installed first when it is not there')
        .choices(['llama', 'vllm'])
        .default('llama'),
    )
    .addHelpText(
      'after',
      `
Examples:
  $ muser demo
  $ muser demo --json | tail -1
  $ muser demo --producer vllm

Exit codes: 0 both answers are equal and the prefill was remote, 1 not so, 2 wrong usage, 130 interrupted`,
    )
    .action(async (flags: { json?: true; producer: 'llama' | 'vllm' }) => {
      const { demo } = await import('../demo/demo.js');
      process.exitCode = await demo({ json: flags.json ?? false, engine: flags.producer });
    });
}
