import type { Command } from 'commander';
import { EXIT } from '../exit.js';

export function registerModelsVerify(models: Command): void {
  models
    .command('verify')
    .summary('compare the files of a model with its manifest')
    .description('Reads every file of a model again and compares size and SHA-256 with its manifest.')
    .argument('<model>', 'name of a model, or a folder that was pulled to')
    .option('--json', 'print {"name", "folder", "ok", "files": [{"path", "size", "state"}], "unlisted"}')
    .addHelpText(
      'after',
      `
Examples:
  $ muser models verify muse-nano

Exit codes: 0 every file is right, 1 one is missing or wrong, 2 wrong usage`,
    )
    .action(async (model: string, flags: { json?: true }) => {
      const { verifyCommand } = await import('../models/commands.js');
      const { ok } = await verifyCommand({ model, json: flags.json ?? false });
      process.exitCode = ok ? EXIT.ok : EXIT.failed;
    });
}
