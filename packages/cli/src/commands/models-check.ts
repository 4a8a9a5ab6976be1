import type { Command } from 'commander';
import { EXIT } from '../exit.js';

export function registerModelsCheck(models: Command): void {
  models
    .command('check')
    .summary('whether a model can be prefilled remotely, and why not')
    .description(
      "Says remote-capable, local only or unsupported, from the model's own metadata: kinds of layers, KV heads, head " +
        'dimension, RoPE. With a GGUF file and a Hugging Face folder it compares the two. Only headers are read.',
    )
    .argument('<model>', 'GGUF file, Hugging Face folder, or name of a model that is here')
    .argument('[other]', 'the other half of a pair')
    .option('--json', 'print {"models": [{"verdict", "reasons", "shape", …}], "pair"}')
    .addHelpText(
      'after',
      `
Examples:
  $ muser models check model.gguf
  $ muser models check models/muse-nano/muse-nano-q8_0.gguf models/muse-nano/hf

Exit codes: 0 remote-capable or local only (of a pair: it fits), 1 unsupported or damaged (of a pair: it does not fit),
2 wrong usage`,
    )
    .action(async (model: string, other: string | undefined, flags: { json?: true }) => {
      const { checkCommand } = await import('../models/check/check.js');
      const result = await checkCommand({
        models: other === undefined ? [model] : [model, other],
        json: flags.json ?? false,
      });
      const ok = result.pair?.fits ?? result.models.every(({ verdict }) => verdict !== 'unsupported');
      process.exitCode = ok ? EXIT.ok : EXIT.failed;
    });
}
