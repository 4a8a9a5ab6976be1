import type { Command } from 'commander';
import { EXIT } from '../exit.js';

export function registerModelsList(models: Command): void {
  models
    .command('list')
    .summary('models that are known, and whether they are here')
    .description('Lists the models with a manifest. Sizes are compared; `muser models verify` compares the digests.')
    .option(
      '--json',
      'print {"models": [{"name", "bytes", "files", "present", "folder", "source"}], "damaged": [{"path", "code", "message"}]}',
    )
    .addHelpText(
      'after',
      '\nExamples:\n  $ muser models list\n\nExit codes: 0 listed, 1 a manifest is damaged, 2 wrong usage',
    )
    .action(async (flags: { json?: true }) => {
      const { listCommand } = await import('../models/commands.js');
      if (!(await listCommand({ json: flags.json ?? false }))) process.exitCode = EXIT.failed;
    });
}
