import { type Command, Option } from 'commander';
import { collect, wholeNumber } from '../arguments.js';
import { ask } from '../ask/ask.js';
import type { PrefillChoice } from '../decoder-client.js';
import { EXIT_CODES_HELP } from '../exit.js';

interface AskFlags {
  file?: string[];
  local?: true;
  remotePrefill?: true;
  prefill?: PrefillChoice;
  json?: true;
  stats?: true;
  quiet?: true;
  url?: string;
  state?: string;
  maxTokens: number;
  timeout: number;
}

export function registerAsk(program: Command): void {
  program
    .command('ask')
    .summary('ask a question, with documents if you like')
    .description(
      'Asks a question and prints the answer as it is decoded. Documents from -f and from a pipe go before the question. ' +
        'What happens meanwhile is shown on standard error.',
    )
    .argument('[question...]', 'the question; several words are joined by blanks')
    .option('-f, --file <path>', 'a text file to put before the question (repeatable)', collect)
    .addOption(new Option('--local', 'prefill on the decoder itself').conflicts(['remotePrefill', 'prefill']))
    .addOption(new Option('--remote-prefill', 'prefill on a producer').conflicts(['local', 'prefill']))
    .addOption(
      new Option('--prefill <way>', 'where to prefill (default: auto, the decoder chooses the faster one)').choices([
        'auto',
        'local',
        'remote',
      ]),
    )
    .option('--json', 'print one JSON object instead of streaming the text')
    .option('--stats', "end with the request's timeline on standard error")
    .option('-q, --quiet', 'show nothing on standard error but errors')
    .option('--url <url>', 'the decoder (default: $MUSER_URL, else what `muser dev` wrote, else 127.0.0.1:11711)')
    .option('--state <dir>', 'state folder of the `muser dev` to ask (default: $MUSER_STATE, else ~/.muser)')
    .option('--max-tokens <n>', 'longest answer', wholeNumber(1, 131_072), 1024)
    .option('--timeout <seconds>', 'give up after this time', wholeNumber(1, 86_400), 600)
    .addHelpText(
      'after',
      `
Examples:
  $ muser ask "What does grep do?"
  $ muser ask --remote-prefill -f notes.md "Where is the backup tape?"
  $ cat log.txt | muser ask "Which port does server bramok listen on?"
  $ muser ask --json --local -f a.txt -f b.txt "Who is ticket 4711 assigned to?"
${EXIT_CODES_HELP}`,
    )
    .action(async (words: string[], flags: AskFlags) => {
      await ask({
        question: words.join(' '),
        files: flags.file ?? [],
        prefill: flags.local ? 'local' : flags.remotePrefill ? 'remote' : (flags.prefill ?? 'auto'),
        json: flags.json ?? false,
        stats: flags.stats ?? false,
        quiet: flags.quiet ?? false,
        url: flags.url,
        state: flags.state,
        maxTokens: flags.maxTokens,
        timeoutSeconds: flags.timeout,
      });
    });
}
