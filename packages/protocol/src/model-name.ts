import { MAX_NAME_BYTES } from './limits.js';

/** Names of folders and files that say nothing about the model in them. */
const GENERIC = new Set([
  '',
  '.',
  '..',
  'hf',
  'gguf',
  'model',
  'models',
  'weights',
  'checkpoint',
  'snapshots',
  'blobs',
]);
/** Files and folders of stores that are named by content: Ollama's blobs, the snapshots of the Hugging Face cache. */
const DIGEST = /^(sha256-)?[0-9a-f]{32,}$/;
/** How weights are stored, at the end of a name: Q4_K_M, IQ2_XS, F16, BF16, NVFP4, MXFP4. */
const QUANTIZATION = /[-._ ](i?q\d\w*|b?f(p)?(16|32)|(nv|mx)?fp[48]\w*)$/i;
const SHARD_NUMBER = /-\d{5}-of-\d{5}$/;
/** How far above the weights a telling name is looked for. */
const LEVELS = 3;

/**
 * What people call the model at `path` (a GGUF file or the folder of a checkpoint): the file's or folder's name without
 * its quantization, so that both sides of a hand-off call it the same. Where the names say nothing it is `ownName`, which
 * the file gives itself and which is often a converter's guess.
 */
export function modelNameOf(path: string, ownName = ''): string {
  const names = path.split(/[\\/]/).reverse().slice(0, LEVELS);
  return [...names, ownName].map(tellingPart).find((name) => name !== '') ?? 'model';
}

function tellingPart(name: string): string {
  const stem = name.replace(/\.gguf$/i, '').replace(SHARD_NUMBER, '');
  // The Hugging Face cache's folders: models--organization--name.
  const own = stem.startsWith('models--') ? (stem.split('--').at(-1) ?? '') : stem;
  const plain = own.replace(QUANTIZATION, '');
  if (GENERIC.has(plain.toLowerCase()) || DIGEST.test(plain)) return '';
  const printable = plain.replace(/[^\p{L}\p{N}._-]+/gu, '-').replace(/^[-.]+/, '');
  // A character that the limit cuts through becomes U+FFFD.
  return Buffer.from(printable)
    .subarray(0, MAX_NAME_BYTES)
    .toString('utf8')
    .replace(/\uFFFD+$/, '');
}
