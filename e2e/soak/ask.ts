import { isErrorCode } from '@muser/protocol';
import type { NeedleDocument } from '@muser/testing';
import { chat, type Answer } from '../test/support/chat.js';
import { messageOf } from '../test/support/needles.js';
import type { Planned } from './plan.js';
import type { Stand } from './stand.js';

/** Who hears nothing for so long, no progress either, waits for something that will not come. How long all takes is the machine's affair. */
const SILENCE_LIMIT_MS = 120_000;
const LIMIT_MS = 1_800_000;
/** Longer documents are compared with the local answer only now and then, or when the needle is not in the answer. */
const ALWAYS_COMPARED_TOKENS = 1_000;
const COMPARED_EVERY = 4;

export interface Outcome {
  /** `same`: word by word the local answer. `found`: the needle is in it. */
  readonly end: 'same' | 'found' | 'cancelled' | 'wrong' | 'unsettled' | 'error';
  readonly answer: Answer | null;
  /** The client left once, whether it came back or not. */
  readonly left: boolean;
  /** What is wrong, for people. */
  readonly problem: string | null;
}

type Judged = Omit<Outcome, 'left'>;

/** Asks as was planned, does what is to happen meanwhile, and judges the answer. */
export async function ask(stand: Stand, planned: Planned, needle: NeedleDocument): Promise<Outcome> {
  const first = await askOnce(stand, planned, needle, planned.leaveAfter);
  const left = first.end === 'cancelled';
  if (!left || !planned.returns) return { ...first, left };
  return { ...(await askOnce(stand, planned, needle, null)), left };
}

async function askOnce(
  stand: Stand,
  planned: Planned,
  needle: NeedleDocument,
  leaveAfter: number | null,
): Promise<Judged> {
  const leave = new AbortController();
  const silent = new AbortController();
  const timer = setTimeout(() => silent.abort(), SILENCE_LIMIT_MS);
  const happen = happenings(stand, planned, () => leave.abort(), leaveAfter);
  let answer: Answer;
  try {
    answer = await chat(stand.decoder, messageOf(needle), planned.way, {
      signal: AbortSignal.any([leave.signal, silent.signal]),
      onProgress: (progress) => {
        timer.refresh();
        happen(progress);
      },
      limitMs: LIMIT_MS,
    });
  } catch (error) {
    if (leave.signal.aborted) return { end: 'cancelled', answer: null, problem: null };
    const problem = error instanceof Error ? error.message : String(error);
    return { end: silent.signal.aborted ? 'unsettled' : 'error', answer: null, problem };
  } finally {
    clearTimeout(timer);
  }
  return judge(stand, planned, needle, answer);
}

function happenings(
  stand: Stand,
  { kill, freezeMs }: Planned,
  leave: () => void,
  leaveAfter: number | null,
): (progress: { bytes?: number }) => void {
  let events = 0;
  let bytesCame = false;
  return ({ bytes = 0 }) => {
    events += 1;
    if (events === leaveAfter) leave();
    if (events === 1 && kill) stand.killOne();
    if (bytes > 0 && !bytesCame && freezeMs !== null) stand.freeze(freezeMs);
    bytesCame ||= bytes > 0;
  };
}

async function judge(stand: Stand, planned: Planned, needle: NeedleDocument, answer: Answer): Promise<Judged> {
  const odd = oddReport(answer, planned);
  if (odd !== null) return { end: 'wrong', answer, problem: `its report: ${odd}` };
  const isFound = answer.text.includes(needle.value);
  const isCompared =
    !isFound || answer.muser.promptTokens <= ALWAYS_COMPARED_TOKENS || planned.index % COMPARED_EVERY === 0;
  if (!isCompared) return { end: 'found', answer, problem: null };
  let local: Answer;
  try {
    local = await stand.reference.answer(messageOf(needle));
  } catch (error) {
    return { end: 'error', answer, problem: `no local answer to compare with: ${(error as Error).message}` };
  }
  if (answer.text === local.text) return { end: 'same', answer, problem: null };
  // Other borders of chunks round differently, which may turn a word; the fact has to stay.
  if (isFound) return { end: 'found', answer, problem: null };
  const problem = `${JSON.stringify(answer.text)}, locally ${JSON.stringify(local.text)}, needle ${needle.value}`;
  return { end: 'wrong', answer, problem };
}

/** What a report says that cannot be; null when it can. */
function oddReport({ muser }: Answer, { way }: Planned): string | null {
  const { prefill, fallback, kvBytes, cachedTokens, promptTokens } = muser;
  if (fallback !== null && !isErrorCode(fallback.code)) return `fallback ${fallback.code} is no code`;
  if (prefill === 'remote' && fallback !== null) return `remote, with fallback ${fallback.code}`;
  if (prefill === 'remote' && kvBytes === 0) return 'remote without a byte';
  if (prefill === 'resumed' && (fallback === null || kvBytes === 0)) return 'resumed without a reason or a byte';
  if (way === 'local' && (prefill !== 'local' || kvBytes > 0)) return `${prefill} although local was asked for`;
  if (cachedTokens >= promptTokens) return `${cachedTokens} of ${promptTokens} tokens were cached`;
  return null;
}
