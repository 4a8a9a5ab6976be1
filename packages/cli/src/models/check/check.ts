import { existsSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { usageError } from '../../exit.js';
import { formatTable } from '../../format.js';
import { findCheckpoint } from '../../system/checkpoint.js';
import { modelFolders, pathOrModel } from '../catalogue.js';
import { repositorySchema } from '../manifest.js';
import { runCommand } from '../run.js';
import { comparePair, type Comparison, TokenComparison, type TokenDifference } from './compare.js';
import { ggufTraits } from './gguf-traits.js';
import { hfTraits, type TokenList } from './hf-traits.js';
import { type ModelTraits, type Verdict, verdictOf } from './traits.js';

/** Models of one folder that are looked at. */
const MAX_MODELS = 32;

export interface CheckedModel extends Omit<ModelTraits, 'obstacles'> {
  verdict: Verdict;
  reasons: string[];
}

export interface CheckResult {
  models: CheckedModel[];
  /** null unless there are two models. */
  pair: Pair | null;
}

export interface Pair {
  fits: boolean;
  compared: Comparison[];
  firstTokenDifference: TokenDifference | null;
}

/** Looks at one model, or at the GGUF file and the Hugging Face folder of one pair. Reads headers only. */
export async function checkModels(paths: readonly string[]): Promise<CheckResult> {
  const found = await Promise.all(paths.map(findModels));
  if (found.length === 1) {
    const models: CheckedModel[] = [];
    for (const { format, path } of found.flat()) {
      models.push(summary(format === 'gguf' ? ggufTraits(path) : (await hfTraits(path)).traits));
    }
    return { models, pair: null };
  }
  const gguf = found.flat().filter(({ format }) => format === 'gguf');
  const folders = found.flat().filter(({ format }) => format === 'huggingface');
  const [file, folder] = [gguf[0], folders[0]];
  if (file === undefined || folder === undefined || gguf.length > 1 || folders.length > 1) {
    throw usageError('a pair is one GGUF file (for the decoder) and one Hugging Face folder (for the producer)');
  }
  const { traits, tokens } = await hfTraits(folder.path);
  return checkPair(file.path, traits, tokens);
}

function checkPair(path: string, hf: ModelTraits, list: TokenList | null): CheckResult {
  const tokens = list === null ? null : new TokenComparison(list);
  const gguf = ggufTraits(path, (id, bytes) => tokens?.add(id, bytes));
  const compared = comparePair(gguf, hf, tokens);
  const models = [summary(gguf), summary(hf)];
  const fits =
    models.every(({ verdict }) => verdict === 'remote-capable') && compared.every(({ same }) => same !== false);
  return { models, pair: { fits, compared, firstTokenDifference: tokens?.first ?? null } };
}

function summary({ obstacles, ...traits }: ModelTraits): CheckedModel {
  return { ...traits, verdict: verdictOf(obstacles), reasons: obstacles.map(({ reason }) => reason) };
}

interface Found {
  format: ModelTraits['format'];
  path: string;
}

/** A GGUF file, a folder with a config.json, or what of these lies in a folder and in the folders in it. */
async function findModels(path: string): Promise<Found[]> {
  const there = await stat(path);
  if (there.isFile()) return [{ format: 'gguf', path }];
  if (!there.isDirectory()) throw usageError(`${path} is neither a file nor a folder`);
  const found = await modelsIn(path);
  if (found.every(({ format }) => format === 'gguf')) {
    for (const entry of await readdir(path, { withFileTypes: true })) {
      if (entry.isDirectory()) found.push(...(await modelsIn(join(path, entry.name))));
    }
  }
  if (found.length > 0 && found.length <= MAX_MODELS) return found;
  const reason = found.length === 0 ? 'has neither a GGUF file nor a config.json' : `has ${found.length} models`;
  throw usageError(`${path} ${reason}`, 'Name the file or the folder itself.');
}

async function modelsIn(folder: string): Promise<Found[]> {
  const names = (await readdir(folder)).sort();
  if (names.includes('config.json')) return [{ format: 'huggingface', path: folder }];
  return names
    .filter((name) => name.endsWith('.gguf'))
    .map((name): Found => ({ format: 'gguf', path: join(folder, name) }));
}

/** OWNER/NAME of a hub, unless something of that path is here. */
function isRepository(what: string): boolean {
  return repositorySchema.safeParse(what).success && !existsSync(what);
}

export interface CheckCommand {
  models: string[];
  json: boolean;
}

export async function checkCommand(command: CheckCommand): Promise<CheckResult> {
  return runCommand(
    command.json,
    async () => {
      const folders = modelFolders(process.env);
      const located = command.models.map((model) =>
        isRepository(model) ? findCheckpoint(model, process.env) : pathOrModel(model, folders),
      );
      return checkModels(await Promise.all(located));
    },
    (result, output) => {
      const colours = { 'remote-capable': 'green', 'local only': 'yellow', unsupported: 'red' } as const;
      const lines = result.models.flatMap((model) => [
        `${output.paint(colours[model.verdict], model.verdict)}  ${model.path} (${model.architecture})`,
        ...describe(model).map((line) => `  ${line}`),
      ]);
      return [...lines, ...(result.pair === null ? [] : describePair(result.pair))].join('\n');
    },
  );
}

function describe(model: CheckedModel): string[] {
  const { shape, reasons, notes } = model;
  const lines = reasons.map((reason) => `- ${reason}`);
  if (shape !== null) {
    const window = shape.windowTokens > 0 ? `, window ${shape.windowTokens}` : '';
    lines.push(
      `${shape.layerCount} layers, ${shape.kvHeads} KV heads of ${shape.headDimension}${window}, RoPE base ${shape.ropeBase ?? 'unknown'}, ${shape.vocabularySize} tokens`,
    );
  }
  return [...lines, ...notes];
}

function describePair({ fits, compared, firstTokenDifference }: Pair): string[] {
  const rows = compared.map(({ what, gguf, huggingface, same }) => [
    what,
    gguf ?? '-',
    huggingface ?? '-',
    same === null ? 'not said' : same ? 'same' : 'DIFFERENT',
  ]);
  const lines = ['', formatTable([['', 'GGUF', 'Hugging Face', ''], ...rows])];
  if (firstTokenDifference !== null) {
    const { id, gguf, huggingface } = firstTokenDifference;
    lines.push(`token ${id} is ${JSON.stringify(gguf)} here and ${JSON.stringify(huggingface)} there`);
  }
  lines.push(fits ? 'The pair fits. `muser producer qualify` has the last word.' : 'The pair does not fit.');
  return lines;
}
