import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { composeMessage } from '../ask/documents.js';
import { ProgressReporter } from '../ask/progress.js';
import { DecoderClient, type PrefillChoice, type Summary } from '../decoder-client.js';
import { CliError, EXIT } from '../exit.js';
import { formatBytes, formatCount, formatDuration, formatTable } from '../format.js';
import { listenForInterrupts } from '../signals.js';
import { DEFAULT_MODEL, HANDBOOK } from '../system/paths.js';
import { prepareEngine, type EngineName } from '../system/producer-engine.js';
import { System } from '../system/system.js';
import { printable, StatusOutput } from '../terminal.js';

export const DEMO_QUESTION = 'Where is the backup tape?';
const MAX_TOKENS = 64;
/** Long enough for a few prefill steps, and another text than the document's beginning. */
const WARM_UP_CHARACTERS = 8_000;

interface Answer {
  text: string;
  summary: Summary;
}

/** Answers one question about a document by local and by remote prefill and compares. Returns the exit code. */
export async function demo(options: { json: boolean; engine: EngineName }): Promise<number> {
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  const startedAt = performance.now();
  const tell = (text: string): void => output.line(`[${formatDuration(performance.now() - startedAt)}] ${text}`);
  let system: System | null = null;
  const interrupts = listenForInterrupts((exitCode) => {
    system?.kill();
    process.exit(exitCode);
  });
  const state = await mkdtemp(join(tmpdir(), 'muser-demo-'));
  try {
    const engine = await prepareEngine({ name: options.engine, model: null, alone: null }, interrupts.signal);
    system = new System({
      state,
      model: DEFAULT_MODEL,
      engine,
      port: 0,
      prefillTokensPerSecond: null,
      onProgress: tell,
      onExit: (name, reason) => tell(`the ${name} ${reason}`),
    });
    await system.start(interrupts.signal);
    const client = new DecoderClient(new URL(system.endpoints.decoder));
    const { local, remote } = await compare(client, output, tell, interrupts.signal);
    const problem = judge(local, remote);
    print(local, remote, options.json);
    if (problem === null) return EXIT.ok;
    output.always(`${output.paint('red', 'failed:')} ${problem}`);
    return EXIT.failed;
  } finally {
    await system?.stop(tell);
    await rm(state, { recursive: true, force: true });
    interrupts.dispose();
  }
}

async function compare(
  client: DecoderClient,
  output: StatusOutput,
  tell: (text: string) => void,
  signal: AbortSignal,
): Promise<{ local: Answer; remote: Answer }> {
  const document = await readFile(HANDBOOK, 'utf8');
  const warmUp = composeMessage([document.slice(-WARM_UP_CHARACTERS)], DEMO_QUESTION);
  const message = composeMessage([document], DEMO_QUESTION);
  const run = async (text: string, prefill: PrefillChoice): Promise<Answer> => {
    const reporter = new ProgressReporter(output);
    const answer = await collect(client, text, prefill, reporter, signal);
    output.clear();
    return answer;
  };
  tell('warming up both ways with a shorter text (not measured)');
  await run(warmUp, 'local');
  await run(warmUp, 'remote');
  tell('asking with local prefill');
  const local = await run(message, 'local');
  tell('asking with remote prefill');
  const remote = await run(message, 'remote');
  return { local, remote };
}

async function collect(
  client: DecoderClient,
  message: string,
  prefill: PrefillChoice,
  reporter: ProgressReporter,
  signal: AbortSignal,
): Promise<Answer> {
  let text = '';
  for await (const event of client.chat({ message, prefill, maxTokens: MAX_TOKENS }, signal)) {
    if (event.type === 'text') text += event.text;
    else if (event.type === 'finished') return { text, summary: event.summary };
    else if (text === '') reporter.report(event.progress);
  }
  throw new CliError(EXIT.failed, 'INTERNAL', 'the decoder gave no answer');
}

/** What is wrong, or null. */
function judge(local: Answer, remote: Answer): string | null {
  if (remote.summary.prefill !== 'remote') {
    const fallback = remote.summary.fallback;
    return `the prefill was not remote${fallback === null ? '' : `: ${fallback.message} (${fallback.code})`}`;
  }
  return local.text === remote.text ? null : 'the two answers differ';
}

function print(local: Answer, remote: Answer, json: boolean): void {
  const { kvBytes, shards, overlap, promptTokens, producer } = remote.summary;
  const rows = [
    ['', 'local prefill', 'remote prefill'],
    ['first token after', formatDuration(local.summary.ttftMs), formatDuration(remote.summary.ttftMs)],
    ['answer', printable(local.text), printable(remote.text)],
    ['same answer', '', local.text === remote.text ? 'yes' : 'NO'],
    ['KV moved', '-', `${formatBytes(kvBytes)} in ${formatCount(shards)} shards`],
    ['installed before the prefill ended', '-', `${(overlap * 100).toFixed(0)} % of the bytes`],
  ];
  const text =
    `\nQuestion: ${DEMO_QUESTION} (a document of ${formatCount(promptTokens)} tokens)\n\n${formatTable(rows)}\n\n` +
    'Both engines share the cores of this one machine, so remote prefill is not expected to be faster here.\n';
  // With --json only the object goes to standard output, so that a program can read it without searching.
  (json ? process.stderr : process.stdout).write(text);
  if (!json) return;
  const result = {
    answer: remote.text,
    localAnswer: local.text,
    prefill: remote.summary.prefill,
    promptTokens,
    ttftMs: { local: local.summary.ttftMs, remote: remote.summary.ttftMs },
    kvBytes,
    overlap,
    shards,
    producer: { backend: producer?.backend ?? null },
  };
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
