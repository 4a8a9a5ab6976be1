import { access, constants, stat } from 'node:fs/promises';
import { CliError, EXIT, usageError } from '../exit.js';
import { formatDuration } from '../format.js';
import { listenForInterrupts } from '../signals.js';
import { DEFAULT_DECODER_PORT, stateLayout, stateRoot } from '../state.js';
import { isPortFree } from '../system/port.js';
import { prepareEngine, type EngineName } from '../system/producer-engine.js';
import { System, type RoleName } from '../system/system.js';
import { StatusOutput } from '../terminal.js';
import { lockState, waitForPrevious } from './lock.js';

export interface DevOptions {
  state: string | undefined;
  model: string;
  engine: EngineName;
  /** Of the producer; null: `model` for llama, the checkpoint in the repository for vllm. */
  producerModel: string | null;
  /** null: the usual port, or a free one when that is taken. */
  port: number | null;
  json: boolean;
  prefillTokensPerSecond: number | null;
}

/** Runs the whole system until Ctrl-C. Returns the exit code. */
export async function dev(options: DevOptions): Promise<number> {
  const startedAt = performance.now();
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  const tell = (text: string): void => output.line(`[${formatDuration(performance.now() - startedAt)}] ${text}`);
  const layout = stateLayout(stateRoot(options.state, process.env));
  await checkModel(options.model);
  const lock = await lockState(layout);
  let system: System | null = null;
  const interrupts = listenForInterrupts((exitCode) => {
    system?.kill();
    process.exit(exitCode);
  });
  const decoderEnded = new AbortController();
  try {
    await waitForPrevious(layout, output, interrupts.signal);
    const producerModel = options.producerModel ?? (options.engine === 'llama' ? options.model : null);
    const engine = await prepareEngine({ name: options.engine, model: producerModel, alone: null }, interrupts.signal);
    system = new System({
      state: layout.root,
      model: options.model,
      engine,
      port: await choosePort(options.port, tell),
      prefillTokensPerSecond: options.prefillTokensPerSecond,
      onProgress: tell,
      onExit: (name, reason) => {
        tell(describeDeath(name, reason, layout.logs));
        if (name === 'decoder') decoderEnded.abort();
      },
    });
    await system.start(interrupts.signal);
    announce(system, options.json, tell);
    await aborted(AbortSignal.any([interrupts.signal, decoderEnded.signal]));
    await system.stop(tell);
    if (decoderEnded.signal.aborted) return EXIT.failed;
    tell('stopped');
    return EXIT.ok;
  } finally {
    interrupts.dispose();
    await lock.release();
  }
}

function announce(system: System, json: boolean, tell: (text: string) => void): void {
  const { decoder, coordinator, pids } = system.endpoints;
  if (json) process.stdout.write(`${JSON.stringify({ ready: true, decoder, coordinator, pids })}\n`);
  tell(`ready: ask with \`muser ask "…"\`, or any OpenAI client at ${decoder}/v1; Ctrl-C stops everything`);
}

async function checkModel(path: string): Promise<void> {
  const advice = 'Name a GGUF file with --model.';
  try {
    await access(path, constants.R_OK);
  } catch (error) {
    const message = `the model file ${path} cannot be read`;
    throw new CliError(EXIT.usage, 'MODEL_LOAD_FAILED', message, { advice, cause: error });
  }
  if ((await stat(path)).isFile()) return;
  throw new CliError(EXIT.usage, 'MODEL_LOAD_FAILED', `the model ${path} is no file`, { advice });
}

async function choosePort(wanted: number | null, tell: (text: string) => void): Promise<number> {
  const port = wanted ?? DEFAULT_DECODER_PORT;
  if (port === 0 || (await isPortFree(port))) return port;
  if (wanted !== null) throw usageError(`port ${port} is in use`, 'Choose another one, or 0 for a free one.');
  tell(`port ${port} is in use by something else: taking a free one`);
  return 0;
}

function describeDeath(name: RoleName, reason: string, logs: string): string {
  const consequence = {
    producer: 'answers go on with local prefill',
    coordinator: 'answers go on; nodes can no longer be added or seen',
    decoder: 'without it there are no answers: stopping the rest',
  }[name];
  return `the ${name} ${reason}: ${consequence} (log: ${logs}/${name}.log)`;
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}
