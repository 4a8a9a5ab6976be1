import type { Command } from 'commander';
import { wholeNumber } from '../arguments.js';

export function registerModelsPull(models: Command): void {
  models
    .command('pull')
    .summary('fetch a model')
    .description(
      'Fetches the files of a model and keeps only those whose size and SHA-256 are the ones of its manifest. Files that ' +
        'the Hugging Face cache, LM Studio or Ollama already have are taken from there. What is interrupted is resumed.',
    )
    .argument('<model>', 'name of a model (see `muser models list`), or the path of a manifest')
    .option('--from <source>', '"hub", the https:// address of a mirror, or a folder (default: what the manifest says)')
    .option('--to <dir>', 'folder for the files (default: $MUSER_MODELS/NAME, else ~/.muser/models/NAME)')
    .option('--jobs <n>', 'files that are fetched at once', wholeNumber(1, 16), 4)
    .option('--json', 'print {"name", "folder", "bytes", "files": [{"path", "size", "sha256", "from"}]}')
    .addHelpText(
      'after',
      `
Examples:
  $ muser models pull muse-nano
  $ muser models pull muse-glimmer-30b-nvfp4 --jobs 8
  $ muser models pull ./model.json --from https://mirror.example/models/ --to ./model

Environment:
  MUSER_HUB_TOKEN  token for the hub; sent to no other host
  MUSER_HUB_URL    another hub with the same interface
  MUSER_MODELS     where models are kept

Exit codes: 0 complete, 1 failed, 2 wrong usage, 3 the source cannot be reached, 130 interrupted (parts stay)`,
    )
    .action(async (model: string, flags: { from?: string; to?: string; jobs: number; json?: true }) => {
      const { pullCommand } = await import('../models/commands.js');
      await pullCommand({ model, from: flags.from, to: flags.to, jobs: flags.jobs, json: flags.json ?? false });
    });
}
