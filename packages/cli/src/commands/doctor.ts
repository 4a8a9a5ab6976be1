import type { Command } from 'commander';

interface DoctorFlags {
  state?: string;
  url?: string;
  model?: string;
  json?: true;
}

export function registerDoctor(program: Command): void {
  program
    .command('doctor')
    .summary('look at what is installed and what can be reached')
    .description('Looks at Node, the engine, the model, the state folder, certificates, decoder and coordinator.')
    .option('--state <dir>', 'state folder to look at (default: $MUSER_STATE, else ~/.muser)')
    .option('--url <url>', 'decoder to look at (default: the one of the state folder)')
    .option('--model <file>', 'GGUF file to look at (default: muse-nano)')
    .option('--json', 'print {"ok", "checks": [{"name", "status", "detail", "advice"}]}')
    .addHelpText(
      'after',
      `
Examples:
  $ muser doctor
  $ muser doctor --json --state ./state

Exit codes: 0 nothing is broken (warnings are no failures), 1 something is, 2 wrong usage`,
    )
    .action(async (flags: DoctorFlags) => {
      const [{ doctor }, { DEFAULT_MODEL }] = await Promise.all([
        import('../doctor/doctor.js'),
        import('../system/paths.js'),
      ]);
      process.exitCode = await doctor({
        state: flags.state,
        url: flags.url,
        model: flags.model ?? DEFAULT_MODEL,
        json: flags.json ?? false,
      });
    });
}
