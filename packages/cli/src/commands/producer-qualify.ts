import { type Command, Option } from 'commander';

interface QualifyFlags {
  backend: 'llama' | 'vllm';
  model?: string;
  gguf?: string;
  out?: string;
  state?: string;
  verify?: string;
  json?: true;
}

export function registerProducerQualify(producer: Command): void {
  producer
    .command('qualify')
    .summary('compare a producer with the model that decodes')
    .description(
      'Prefills fixed prompts with the producer and with llama.cpp, compares K and V of every layer, the first logits, greedy ' +
        'tokens and speed, and writes a signed record. Both models have to be on this machine, and the producer must not run. ' +
        'When they are no pair it names the first layer that differs and the likely cause.',
    )
    .addOption(new Option('--backend <engine>', 'what prefills').choices(['llama', 'vllm']).default('vllm'))
    .option('--model <model>', 'what it prefills with, as for `muser producer` (default: muse-nano)')
    .option('--gguf <file>', 'the GGUF file that decodes (default: muse-nano)')
    .option('--out <file>', 'the record (default: producer/qualification.json in the state folder)')
    .option('--state <dir>', 'has the key that signs (default: $MUSER_STATE, else ~/.muser)')
    .option('--verify <file>', 'check the signature of a record and show it; runs nothing')
    .option('--json', 'print the record as one JSON object')
    .addHelpText(
      'after',
      `
Examples:
  $ muser producer qualify --backend vllm --model models/muse-nano/hf --gguf models/muse-nano/muse-nano-q8_0.gguf
  $ muser producer qualify --model RedHatAI/Muse-Glimmer-30B-NVFP4 --gguf muse-glimmer-30b-q4_k_m.gguf --out pair.json
  $ muser producer qualify --verify pair.json

Exit codes: 0 it passed, 1 it failed, or the record is not valid, 2 wrong usage, 130 interrupted by Ctrl-C`,
    )
    .action(async (flags: QualifyFlags) => {
      const { qualifyCommand } = await import('../producer-qualify/command.js');
      process.exitCode = await qualifyCommand({
        engine: flags.backend,
        model: flags.model ?? null,
        gguf: flags.gguf ?? null,
        out: flags.out ?? null,
        state: flags.state,
        verify: flags.verify ?? null,
        json: flags.json ?? false,
      });
    });
}
