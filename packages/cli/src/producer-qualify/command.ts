import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { describeError, prepareResultFile, writeFileAtomic } from '@muser/service-kit';
import { CliError, EXIT, usageError } from '../exit.js';
import { formatDuration } from '../format.js';
import { type CommandContext, runCommand } from '../models/run.js';
import { ownVariables } from '../producer-run/own-variables.js';
import { createStateFolders, stateLayout, stateRoot } from '../state.js';
import { DEFAULT_MODEL } from '../system/paths.js';
import { describeMilestone, type EngineName, prepareEngine } from '../system/producer-engine.js';
import { type Progress, runQualifier } from './child.js';
import { RECORD_FILE } from './schema.js';
import { type Qualification, qualificationText } from './show.js';

export interface QualifyCommand {
  engine: EngineName;
  /** null: the small model of the repository. */
  model: string | null;
  gguf: string | null;
  out: string | null;
  state: string | undefined;
  /** A record to check instead. */
  verify: string | null;
  json: boolean;
}

/** Returns the exit code: whether the pair passed. */
export async function qualifyCommand(command: QualifyCommand): Promise<number> {
  const { verify } = command;
  const work = (context: CommandContext): Promise<Qualification> =>
    verify === null ? qualify(command, context) : verifyRecord(resolve(verify), context);
  const { record } = await runCommand(command.json, work, qualificationText);
  return record.verdict === 'passed' ? 0 : 1;
}

async function qualify(command: QualifyCommand, { signal, output }: CommandContext): Promise<Qualification> {
  const startedAt = performance.now();
  const tell = (text: string): void => output.line(`[${formatDuration(performance.now() - startedAt)}] ${text}`);
  const gguf = resolve(command.gguf ?? DEFAULT_MODEL);
  await requireFile(gguf, 'Give the GGUF file that decodes with --gguf.');
  if (command.engine === 'llama') {
    await requireFile(resolve(command.model ?? DEFAULT_MODEL), 'Give the GGUF file that prefills with --model.');
  }
  const layout = stateLayout(stateRoot(command.state, process.env));
  const file = resolve(command.out ?? join(layout.producer, 'qualification.json'));
  await createStateFolders(layout);
  await prepareOut(file);
  const alone = { promptTokens: null, requests: 1 };
  const engine = await prepareEngine({ name: command.engine, model: command.model, alone }, signal);
  const configFile = join(layout.producer, 'qualify-config.json');
  const config = { stateDir: layout.producer, exitWithParent: true, backend: engine.name, model: engine.model };
  await writeFileAtomic(configFile, `${JSON.stringify(config, null, 2)}\n`);
  tell(`starting ${engine.name} with ${engine.model}`);
  const result = await runQualifier(
    {
      args: ['qualify', 'run', '--config', configFile, '--gguf', gguf, '--out', file],
      environment: { ...engine.environment, ...ownVariables(process.env) },
      logFile: join(layout.logs, 'qualify.log'),
      onProgress: (progress) => tell(progressText(progress)),
    },
    signal,
  );
  return { ...result, file };
}

async function requireFile(path: string, advice: string): Promise<void> {
  const found = await stat(path).catch(() => null);
  if (found === null) throw usageError(`there is no file ${path}`, advice);
  if (!found.isFile()) throw usageError(`${path} is not a file`, advice);
}

/** Before anything is installed or loaded; the producer looks again, because its own files may be there by then. */
async function prepareOut(file: string): Promise<void> {
  try {
    await prepareResultFile(file, RECORD_FILE);
  } catch (error) {
    const advice = 'Choose another file with --out.';
    throw new CliError(EXIT.usage, 'CONFIG_INVALID', describeError(error).message, { advice, cause: error });
  }
}

async function verifyRecord(file: string, { signal }: CommandContext): Promise<Qualification> {
  const result = await runQualifier({ args: ['qualify', 'verify', '--file', file] }, signal);
  return { ...result, file };
}

function progressText(progress: Progress): string {
  switch (progress.stage) {
    case 'engine':
      return describeMilestone({ milestone: progress.name, ms: progress.ms });
    case 'loaded':
      return `${progress.backend} has loaded ${progress.model}`;
    case 'prompt':
      return `prompt ${progress.number} of ${progress.of}: ${progress.tokens} tokens`;
  }
}
