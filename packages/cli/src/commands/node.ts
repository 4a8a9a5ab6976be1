import type { Command } from 'commander';
import { wholeNumber } from '../arguments.js';

interface PauseFlags {
  now?: true;
  state?: string;
  timeout: number;
  json?: true;
}

const STATE_HELP = 'state folder of the coordinator (default: $MUSER_STATE, else ~/.muser)';
const PAUSE_LIMIT_SECONDS = 600;
/** Loading, compiling and warming up tens of gigabytes. */
const RESUME_LIMIT_SECONDS = 900;
const ROTATE_LIMIT_SECONDS = 30;
const MAX_LIMIT_SECONDS = 3_600;

const EXIT_CODES = `
Exit codes: 0 done (also when it was so already), 1 it failed or took longer than --timeout, 2 wrong usage, 3 no coordinator
runs here or it cannot be reached, 130 interrupted by Ctrl-C: that ends the wait, the order may stand`;

export function registerNode(program: Command): void {
  const node = program.command('node').description('The nodes that the coordinator knows.');
  node
    .command('list')
    .description('Lists the nodes with their state, load and model, as the coordinator sees them.')
    .option('--state <dir>', STATE_HELP)
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
  registerPause(node);
  registerResume(node);
  registerRotate(node);
  registerRevoke(node);
}

function registerPause(node: Command): void {
  node
    .command('pause')
    .summary('unload the model of a producer, so that its GPU can be used for other work')
    .description(
      'Pauses a producer: it takes nothing new at once (decoders use another one, or prefill themselves), finishes what runs, ' +
        'unloads the model, and stays so until it is resumed, also when it or the coordinator is restarted. Its memory is ' +
        'free when this command ends.',
    )
    .argument('<node>', 'name or id of the producer')
    .option('--now', 'cancel the transfers that run; their decoders prefill the rest themselves')
    .option('--timeout <seconds>', 'wait so long', wholeNumber(1, MAX_LIMIT_SECONDS), PAUSE_LIMIT_SECONDS)
    .option('--state <dir>', STATE_HELP)
    .option('--json', "print the coordinator's answer, or the error, as JSON")
    .addHelpText(
      'after',
      `
Examples:
  $ muser node pause spark
  $ muser node pause --now --json spark
${EXIT_CODES}`,
    )
    .action((name: string, flags: PauseFlags) => run(name, true, flags));
}

function registerResume(node: Command): void {
  node
    .command('resume')
    .summary('load the model of a paused producer again')
    .description(
      'Resumes a producer: it loads its model again and is healthy when its engine is ready. Also starts an engine ' +
        'again that has given up (state error).',
    )
    .argument('<node>', 'name or id of the producer')
    .option('--timeout <seconds>', 'wait so long', wholeNumber(1, MAX_LIMIT_SECONDS), RESUME_LIMIT_SECONDS)
    .option('--state <dir>', STATE_HELP)
    .option('--json', "print the coordinator's answer, or the error, as JSON")
    .addHelpText(
      'after',
      `
Examples:
  $ muser node resume spark
  $ muser node resume --timeout 60 spark
${EXIT_CODES}`,
    )
    .action((name: string, flags: PauseFlags) => run(name, false, flags));
}

function registerRotate(node: Command): void {
  node
    .command('rotate')
    .summary('give a running node a new TLS key and certificate')
    .description(
      'Gives a running node a new TLS key and certificate now; the coordinator does so by itself at two thirds of their ' +
        'life. New connections use them, transfers that run go on. The identity key, and with it the node id, stays: ' +
        'docs/OPERATIONS.md says how that is replaced.',
    )
    .argument('<node>', 'name or id of the producer or decoder')
    .option('--timeout <seconds>', 'wait so long', wholeNumber(1, MAX_LIMIT_SECONDS), ROTATE_LIMIT_SECONDS)
    .option('--state <dir>', STATE_HELP)
    .option('--json', "print the coordinator's answer as JSON")
    .addHelpText(
      'after',
      `
Examples:
  $ muser node rotate spark

Exit codes: 0 it has a new certificate, 1 it failed or took longer than --timeout, 2 wrong usage, 3 no coordinator runs here or
it cannot be reached`,
    )
    .action(async (name: string, flags: { state?: string; timeout: number; json?: true }) => {
      const { rotateNode } = await import('../nodes/trust.js');
      const { state, timeout: timeoutSeconds, json = false } = flags;
      await rotateNode({ node: name, state, timeoutSeconds, json });
    });
}

function registerRevoke(node: Command): void {
  node
    .command('revoke')
    .summary('end the part of a node in the system, for good')
    .description(
      'Revokes a node: the coordinator and every producer that it reaches refuse it within 10 seconds, and what it runs ' +
        'ends. A producer that cannot be reached refuses it when its ticket ends, after 15 minutes at most. There is no way ' +
        'back under the same key; enroll a new identity instead.',
    )
    .argument('<node>', 'name or id of the producer or decoder')
    .option('--state <dir>', STATE_HELP)
    .option('--json', "print the coordinator's answer as JSON")
    .addHelpText(
      'after',
      `
Examples:
  $ muser node revoke old-mac

Exit codes: 0 revoked, 1 the coordinator refused, 2 wrong usage, 3 no coordinator runs here or it cannot be reached`,
    )
    .action(async (name: string, flags: { state?: string; json?: true }) => {
      const { revokeNode } = await import('../nodes/trust.js');
      await revokeNode({ node: name, state: flags.state, json: flags.json ?? false });
    });
}

async function run(node: string, paused: boolean, flags: PauseFlags): Promise<void> {
  const { setPaused } = await import('../nodes/pause.js');
  await setPaused({
    node,
    paused,
    now: flags.now ?? false,
    state: flags.state,
    timeoutSeconds: flags.timeout,
    json: flags.json ?? false,
  });
}
