import type { Command } from 'commander';

export function registerNode(program: Command): void {
  const node = program.command('node').description('The nodes that the coordinator knows.');
  node
    .command('list')
    .description('Lists the nodes with their state, load and model, as the coordinator sees them.')
    .option('--state <dir>', 'state folder of the coordinator (default: $MUSER_STATE, else ~/.muser)')
    .option('--json', "print the coordinator's answer as JSON")
    .addHelpText(
      'after',
      `
Examples:
  $ muser node list
  $ muser node list --json

Exit codes: 0 listed, 1 the coordinator refused, 2 wrong usage, 3 no coordinator runs here or it cannot be reached`,
    )
    .action(async (flags: { state?: string; json?: true }) => {
      const { listNodes } = await import('../nodes/list.js');
      await listNodes({ state: flags.state, json: flags.json ?? false });
    });
}
