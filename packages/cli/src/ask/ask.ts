import { DecoderClient, type PrefillChoice, type Summary } from '../decoder-client.js';
import { BrokenPipeError, CliError, EXIT, usageError } from '../exit.js';
import { listenForInterrupts } from '../signals.js';
import { decoderUrl } from '../state.js';
import { isTerminal, printable, StatusOutput } from '../terminal.js';
import { composeMessage, readDocuments } from './documents.js';
import { ProgressReporter } from './progress.js';
import { timelineTable } from './timeline.js';

export interface AskOptions {
  question: string;
  files: readonly string[];
  prefill: PrefillChoice;
  json: boolean;
  stats: boolean;
  quiet: boolean;
  url: string | undefined;
  state: string | undefined;
  maxTokens: number;
  timeoutSeconds: number;
}

/** The object that `muser ask --json` prints. */
export interface AskResult {
  answer: string;
  prefill: Summary['prefill'];
  fallback: Summary['fallback'];
  promptTokens: number;
  cachedTokens: number;
  ttftMs: number;
  kvBytes: number;
  timeline: Summary['timeline'];
}

/** Asks one question and prints the answer. Throws CliError, InterruptedError or BrokenPipeError. */
export async function ask(options: AskOptions): Promise<void> {
  const interrupts = listenForInterrupts();
  const stop = new AbortController();
  const output = new StatusOutput(process.stderr, { quiet: options.quiet, env: process.env });
  const answer = new AnswerWriter(options.json, (error) => stop.abort(error));
  const deadline = setTimeout(() => stop.abort(timedOut(options.timeoutSeconds)), options.timeoutSeconds * 1000);
  try {
    if (options.question.trim() === '') {
      throw usageError('there is no question', 'For example: muser ask -f notes.md "Where is the backup tape?"');
    }
    const signal = AbortSignal.any([interrupts.signal, stop.signal]);
    const documents = await readDocuments(options.files, process.stdin, output, signal);
    const message = composeMessage(documents, options.question);
    const client = new DecoderClient(await decoderUrl(options, process.env));
    const summary = await stream(client, { ...options, message }, answer, output, signal);
    await answer.finish(summary);
    if (options.stats) output.always(timelineTable(summary));
  } catch (error) {
    output.clear();
    answer.breakLine();
    throw error;
  } finally {
    clearTimeout(deadline);
    interrupts.dispose();
  }
}

async function stream(
  client: DecoderClient,
  request: { message: string; prefill: PrefillChoice; maxTokens: number },
  answer: AnswerWriter,
  output: StatusOutput,
  signal: AbortSignal,
): Promise<Summary> {
  const reporter = new ProgressReporter(output);
  for await (const event of client.chat(request, signal)) {
    if (event.type === 'text') {
      output.clear();
      await answer.write(event.text, signal);
    } else if (event.type === 'finished') {
      answer.breakLine();
      reporter.finish(event.summary);
      return event.summary;
    } else if (!answer.started) {
      reporter.report(event.progress);
    }
  }
  throw new CliError(EXIT.failed, 'INTERNAL', 'the decoder gave no answer');
}

/** Standard output: the answer as it comes, or one JSON object at the end. */
class AnswerWriter {
  #text = '';
  #lineOpen = false;

  constructor(
    private readonly json: boolean,
    onBroken: (error: Error) => void,
  ) {
    process.stdout.on('error', (error: NodeJS.ErrnoException) => onBroken(outputError(error)));
  }

  get started(): boolean {
    return this.#text !== '';
  }

  async write(text: string, signal: AbortSignal): Promise<void> {
    this.#text += text;
    if (this.json) return;
    const shown = isTerminal(process.stdout) ? printable(text) : text;
    if (shown === '') return;
    this.#lineOpen = !shown.endsWith('\n');
    if (!process.stdout.write(shown)) await drained(signal);
  }

  /** Ends an unfinished line, so that what follows on the terminal starts on its own. */
  breakLine(): void {
    if (!this.#lineOpen) return;
    this.#lineOpen = false;
    process.stdout.write('\n');
  }

  async finish(summary: Summary): Promise<void> {
    this.breakLine();
    if (!this.json) return;
    const result: AskResult = {
      answer: this.#text,
      prefill: summary.prefill,
      fallback: summary.fallback,
      promptTokens: summary.promptTokens,
      cachedTokens: summary.cachedTokens,
      ttftMs: summary.ttftMs,
      kvBytes: summary.kvBytes,
      timeline: summary.timeline,
    };
    await new Promise<void>((resolve, reject) => {
      process.stdout.write(`${JSON.stringify(result)}\n`, (error) => (error ? reject(outputError(error)) : resolve()));
    });
  }
}

function outputError(error: NodeJS.ErrnoException): Error {
  if (error.code === 'EPIPE') return new BrokenPipeError();
  return new CliError(EXIT.failed, 'INTERNAL', `standard output cannot be written: ${error.message}`, { cause: error });
}

function drained(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => finish(() => reject(signal.reason as Error));
    const onDrain = (): void => finish(resolve);
    const finish = (settle: () => void): void => {
      process.stdout.off('drain', onDrain);
      signal.removeEventListener('abort', onAbort);
      settle();
    };
    process.stdout.on('drain', onDrain);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
  });
}

function timedOut(seconds: number): CliError {
  return new CliError(EXIT.failed, 'DEADLINE_EXCEEDED', `no complete answer within ${seconds} s`, {
    advice: 'Allow more with --timeout.',
  });
}
