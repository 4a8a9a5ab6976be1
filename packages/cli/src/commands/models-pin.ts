import type { Command } from 'commander';
import { collect } from '../arguments.js';

interface PinFlags {
  from: string;
  name?: string;
  include?: string[];
  output?: string;
  json?: true;
}

export function registerModelsPin(models: Command): void {
  models
    .command('pin')
    .summary("make a manifest of a hub's repository")
    .description(
      'Writes a manifest with the size and SHA-256 of every file of a repository at one commit, from what the hub states. ' +
        'A branch or tag is replaced by the commit that it names now.',
    )
    .argument('<repository>', 'OWNER/NAME@REVISION')
    .option('--from <source>', '"hub", or the address of another hub with the same interface', 'hub')
    .option('--name <name>', "name of the model (default: the repository's, in lower case)")
    .option('--include <pattern>', 'take only these files, * stands for anything (repeatable)', collect)
    .option('--output <file>', 'where to write it (default: manifests/NAME.json in the folder of the models)')
    .option('--json', 'print {"manifest", "name", "files", "bytes", "source"}')
    .addHelpText(
      'after',
      `
Examples:
  $ muser models pin RedHatAI/Muse-Glimmer-30B-NVFP4@main --name muse-glimmer-30b-nvfp4
  $ muser models pin meta-models/Muse-Glimmer-30B-GGUF@main --include "*Q4_K_M*.gguf"

Exit codes: 0 written, 1 failed, 2 wrong usage, 3 the hub cannot be reached`,
    )
    .action(async (repository: string, flags: PinFlags) => {
      const { pinCommand } = await import('../models/commands.js');
      await pinCommand({
        repository,
        from: flags.from,
        name: flags.name,
        include: flags.include ?? [],
        output: flags.output,
        json: flags.json ?? false,
      });
    });
}
