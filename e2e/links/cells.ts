import { setTimeout as delay } from 'node:timers/promises';
import type { NeedleDocument } from '@muser/testing';
import { chat, type Answer } from '../test/support/chat.js';
import { messageOf } from '../test/support/needles.js';
import type { Link } from './link.js';
import type { Scene } from './scene.js';

/** A producer that has failed is left alone for a second at first. */
const RECOVERY_MS = 5_000;
/** Bytes that have come when something happens to a transfer: two chunks of muse-nano, of about six. */
const MIDST_BYTES = 4 << 20;
/** A shard of 1 MiB takes a second. */
const STARVED_BITS_PER_SECOND = 8e6;
/** Of a token of muse-nano when no window row is left out: 8 layers, K and V, 2 heads of 64 in f16. */
const BYTES_PER_TOKEN = 4_096;

export interface CellResult {
  readonly link: string;
  readonly cell: string;
  /** null when all was as it should be. */
  readonly problem: string | null;
  /** Of the answer that the cell is about. */
  readonly way: string;
  readonly fallback: string | null;
  readonly promptTokens: number;
  readonly ttftMs: number;
  readonly localTtftMs: number;
  readonly kvBytes: number;
  /** From the first byte to the last, MB/s. */
  readonly megabytesPerSecond: number | null;
  /** From the end of the prefill until all is installed. */
  readonly exposedTailMs: number | null;
  readonly note: string;
}

/** What a cell found: the answer that it is about, and what it has to say. */
interface Finding {
  readonly answer: Answer;
  readonly local: Answer;
  readonly note?: string;
}

export interface Cell {
  readonly name: string;
  /** Tokens of its documents, about. No document is used twice on a link: what was answered once may be held. */
  readonly documents: readonly number[];
  readonly runsOn: (link: Link) => boolean;
  /** @throws Error when something is not as it should be */
  readonly run: (scene: Scene, documents: readonly NeedleDocument[]) => Promise<Finding>;
}

const everywhere = (): boolean => true;

export const CELLS: readonly Cell[] = [
  { name: 'remote, 1,700 tokens', documents: [1_700], runsOn: everywhere, run: remoteEqualsLocal },
  { name: 'remote, 8,000 tokens', documents: [8_000], runsOn: everywhere, run: remoteEqualsLocal },
  { name: 'two at once', documents: [1_700, 1_700], runsOn: everywhere, run: twoAtOnce },
  { name: 'cancelled, asked again', documents: [3_000], runsOn: everywhere, run: cancelAndAskAgain },
  { name: 'producer killed', documents: [3_000], runsOn: everywhere, run: killProducer },
  { name: 'cable cut', documents: [3_000], runsOn: everywhere, run: cutCable },
  { name: 'auto', documents: [1_700], runsOn: everywhere, run: chooseWay },
  { name: 'link far behind', documents: [8_000], runsOn: ({ starved }) => starved, run: starve },
];

/**
 * Runs a cell; a problem is part of its result. On a machine that is too busy, a process can be silent for longer than
 * another one waits: one more try, of which the result tells.
 *
 * @param documents for the first try, and others for the second: what was sent once is held
 */
export async function runCell(
  cell: Cell,
  scene: Scene,
  documents: readonly [readonly NeedleDocument[], readonly NeedleDocument[]],
): Promise<CellResult> {
  const first = await tryCell(cell, scene, documents[0]);
  if (first.problem === null) return first;
  await delay(RECOVERY_MS);
  const second = await tryCell(cell, scene, documents[1]);
  return { ...second, note: `at the second try (${first.problem}) ${second.note}`.trim() };
}

async function tryCell(cell: Cell, scene: Scene, documents: readonly NeedleDocument[]): Promise<CellResult> {
  const head = { link: scene.link.name, cell: cell.name };
  try {
    const { answer, local, note = '' } = await cell.run(scene, documents);
    return { ...head, problem: null, ...figuresOf(answer), localTtftMs: local.muser.ttftMs, note };
  } catch (error) {
    const none = { way: '-', fallback: null, promptTokens: 0, ttftMs: 0, localTtftMs: 0, kvBytes: 0 };
    const problem = error instanceof Error ? error.message : String(error);
    return { ...head, problem, ...none, megabytesPerSecond: null, exposedTailMs: null, note: '' };
  }
}

async function remoteEqualsLocal(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const needle = only(documents);
  const finding = await compare(scene, needle, () => chat(scene.decoder, messageOf(needle), 'remote'));
  requireRemote(finding.answer);
  return finding;
}

async function twoAtOnce(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const findings = await Promise.all(documents.map((needle) => remoteEqualsLocal(scene, [needle])));
  return only(findings.sort((a, b) => b.answer.muser.ttftMs - a.answer.muser.ttftMs).slice(0, 1));
}

async function cancelAndAskAgain(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const needle = only(documents);
  const stop = new AbortController();
  const midst = onceInTheMidst(() => stop.abort());
  const cancelled = await chat(scene.decoder, messageOf(needle), 'remote', {
    signal: stop.signal,
    onProgress: midst.onProgress,
  }).then(
    () => false,
    () => true,
  );
  if (!cancelled || !midst.happened) throw new Error('the transfer was not cancelled in its midst');
  const finding = await remoteEqualsLocal(scene, documents);
  return { ...finding, note: `${finding.answer.muser.cachedTokens} tokens were held` };
}

async function killProducer(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const needle = only(documents);
  let killed = Promise.resolve();
  const midst = onceInTheMidst(() => (killed = scene.killProducer()));
  try {
    const finding = await compare(scene, needle, () =>
      chat(scene.decoder, messageOf(needle), 'remote', { onProgress: midst.onProgress }),
    );
    const { prefill, fallback } = finding.answer.muser;
    if (!midst.happened) throw new Error('the producer was not killed in the midst');
    if (prefill === 'remote' || fallback === null) throw new Error('nobody noticed that the producer was killed');
    return finding;
  } finally {
    await killed;
    if (midst.happened) await scene.reviveProducer();
  }
}

async function cutCable(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const needle = only(documents);
  let cut = Promise.resolve();
  const midst = onceInTheMidst(() => (cut = scene.cutCable()));
  const finding = await compare(scene, needle, () =>
    chat(scene.decoder, messageOf(needle), 'remote', { onProgress: midst.onProgress }),
  );
  await cut;
  if (!midst.happened) throw new Error('the cable was not cut in the midst');
  const { length } = finding.answer.muser.attempts;
  return { ...finding, note: length === 1 ? 'the same call went on' : `${length} calls` };
}

async function chooseWay(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  const needle = only(documents);
  const finding = await compare(scene, needle, () => chat(scene.decoder, messageOf(needle), 'auto'));
  const { reason, predictedMs } = finding.answer.muser.placement;
  if (reason === '' || predictedMs.local === null || predictedMs.remote === null) {
    throw new Error(`the choice is not explained: ${JSON.stringify(finding.answer.muser.placement)}`);
  }
  return { ...finding, note: `predicted ${predictedMs.local} ms local, ${predictedMs.remote} ms remote` };
}

/** When the prefill is ahead of the link, the producer's room fills, and window rows that nobody needs stay at home. */
async function starve(scene: Scene, documents: readonly NeedleDocument[]): Promise<Finding> {
  await scene.machines.setRate(STARVED_BITS_PER_SECOND);
  try {
    const finding = await remoteEqualsLocal(scene, documents);
    const { kvBytes, promptTokens } = finding.answer.muser;
    const share = kvBytes / ((promptTokens - 1) * BYTES_PER_TOKEN);
    return {
      ...finding,
      note: `${STARVED_BITS_PER_SECOND / 1e6} Mbit/s; sent ${Math.round(100 * share)} % of all rows`,
    };
  } finally {
    await scene.machines.setRate(scene.link.bitsPerSecond);
  }
}

/** Asks, and compares with the local answer and with what the document says. */
async function compare(scene: Scene, needle: NeedleDocument, ask: () => Promise<Answer>): Promise<Finding> {
  const local = await scene.reference.answer(messageOf(needle));
  const answer = await ask();
  if (answer.text !== local.text) throw new Error(`wrong answer ${quoted(answer)}, locally ${quoted(local)}`);
  // Only what comes from the document shows that the answer needed it.
  if (!local.text.includes(needle.value)) throw new Error(`the local answer ${quoted(local)} lacks ${needle.value}`);
  return { answer, local };
}

function requireRemote({ muser: { prefill, fallback } }: Answer): void {
  if (prefill === 'remote' && fallback === null) return;
  throw new Error(`it went ${prefill}: ${fallback === null ? 'no reason' : `${fallback.code}, ${fallback.message}`}`);
}

/** Does something once when a good part of the bytes has come, and not all. */
function onceInTheMidst(act: () => unknown): { happened: boolean; onProgress: (progress: { bytes?: number }) => void } {
  const midst = {
    happened: false,
    onProgress: ({ bytes = 0 }: { bytes?: number }) => {
      if (midst.happened || bytes < MIDST_BYTES) return;
      midst.happened = true;
      act();
    },
  };
  return midst;
}

function figuresOf({ muser }: Answer): Omit<CellResult, 'link' | 'cell' | 'problem' | 'localTtftMs' | 'note'> {
  const { timeline, kvBytes } = muser;
  const between = (from: string, to: string): number | null => {
    const [start, end] = [timeline[from], timeline[to]];
    return start === undefined || end === undefined ? null : end - start;
  };
  const receivedMs = between('firstByte', 'lastByte');
  const tailMs = muser.prefill === 'remote' ? between('prefillEnd', 'installed') : null;
  return {
    way: muser.prefill,
    fallback: muser.fallback?.code ?? null,
    promptTokens: muser.promptTokens,
    ttftMs: muser.ttftMs,
    kvBytes,
    megabytesPerSecond: receivedMs === null || receivedMs === 0 ? null : kvBytes / receivedMs / 1_000,
    // The two machines' clocks are compared by one message, which may have been a little late.
    exposedTailMs: tailMs === null ? null : Math.max(0, tailMs),
  };
}

function only<T>(items: readonly T[]): T {
  const [item] = items;
  if (item === undefined || items.length > 1) throw new Error(`${items.length} instead of one`);
  return item;
}

const quoted = ({ text }: Answer): string => JSON.stringify(text);
