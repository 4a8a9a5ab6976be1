// node host.mjs TARGET.ts: runs the inputs that come on standard input through the target's `fuzz`, and answers on
// descriptor 3 (see packages/testing/src/fuzzing/target-process.ts). What `fuzz` throws is a failure.
import { writeSync } from 'node:fs';
import { register } from 'node:module';
import { pathToFileURL } from 'node:url';

const MAP_SIZE = 65_536;
const [KNOWN, NEW, FAILED] = [0, 1, 2];

const seen = new Uint8Array(MAP_SIZE);
let last = 0;
let isNew = false;
/** Counts ways from one place to the next, as fuzzers do: the same places in another order are something new. */
globalThis.__reached = (place) => {
  const way = (last ^ place) % MAP_SIZE;
  last = place >>> 1;
  if (seen[way] === 0) {
    seen[way] = 1;
    isNew = true;
  }
};

register('./typescript-loader.mjs', import.meta.url);
const { fuzz } = await import(pathToFileURL(process.argv[2]).href);
answer(Buffer.from([KNOWN]));

let unread = Buffer.alloc(0);
for await (const block of process.stdin) {
  unread = Buffer.concat([unread, block]);
  for (let input = nextInput(); input !== null; input = nextInput()) answer(await outcomeOf(input));
}

function nextInput() {
  if (unread.length < 4) return null;
  const end = 4 + unread.readUInt32LE(0);
  if (unread.length < end) return null;
  const input = unread.subarray(4, end);
  unread = unread.subarray(end);
  return input;
}

async function outcomeOf(input) {
  last = 0;
  isNew = false;
  try {
    // A copy: a target that writes into its input would change the next one.
    const pending = fuzz(Buffer.from(input));
    if (pending !== undefined) await pending;
    return Buffer.from([isNew ? NEW : KNOWN]);
  } catch (error) {
    const text = Buffer.from(error instanceof Error ? (error.stack ?? error.message) : String(error));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(text.length);
    return Buffer.concat([Buffer.from([FAILED]), length, text]);
  }
}

/** The reader may be slow for a moment. */
function answer(bytes) {
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(3, bytes, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}
