#!/usr/bin/env node
import { Command } from 'commander';
import { refuseEmptyValues } from './arguments.js';
import { asTyped } from './command-name.js';
import { registerAsk } from './commands/ask.js';
import { registerDemo } from './commands/demo.js';
import { registerDev } from './commands/dev.js';
import { registerDoctor } from './commands/doctor.js';
import { registerModels } from './commands/models.js';
import { registerNode } from './commands/node.js';
import { registerProducer } from './commands/producer.js';
import { EXIT_CODES_HELP } from './exit.js';
import { reportError } from './report-error.js';
import { cliVersion } from './version.js';

const program = new Command('muser')
  .description('Prefill on an NVIDIA GB10, decode on a Mac: one request, two machines.')
  .version(cliVersion())
  .exitOverride()
  .configureOutput({
    writeOut: (text) => process.stdout.write(asTyped(text)),
    writeErr: (text) => process.stderr.write(asTyped(text)),
  })
  // So that `muser producer` and `muser producer plan` can each have a --model.
  .enablePositionalOptions()
  .hook('preAction', (_, command) => refuseEmptyValues(command))
  .showHelpAfterError('(see --help)')
  .addHelpText(
    'after',
    `
Examples:
  $ muser dev                                    # the whole system on this machine
  $ muser ask -f notes.md "Where is the backup tape?"
  $ muser doctor                                 # what is missing, and what to do about it
${EXIT_CODES_HELP}`,
  );
registerAsk(program);
registerDev(program);
registerNode(program);
registerDoctor(program);
registerDemo(program);
registerModels(program);
registerProducer(program);

// A reader that went away (`muser doctor | head -1`) is no reason for a stack trace; commands that care listen themselves.
process.stdout.on('error', () => undefined);
process.stderr.on('error', () => undefined);

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = reportError(error, process.argv.slice(2));
}
