import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { generateSigningKey, nodeIdOf, signingKeyFromSeed } from '@muser/protocol';
import { TestAuthority, writeIdentityFolder } from '@muser/testing';
import { loadIdentity } from '@muser/transport';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { canonicalJson, type Json } from '../src/qualify/canonical-json.js';
import { openRecord, type QualificationRecord, RECORD_FILE, sealRecord } from '../src/qualify/record.js';
import { recordSigner } from '../src/qualify/signer.js';
import { atDepth, THRESHOLDS, thresholdsFor } from '../src/qualify/thresholds.js';

const figures = { cosine: 1, distance: 0.001, maxDifference: 0.5, peak: 0.25 };
const limits = { cosine: 0.9, distance: 0.1, peak: 1 };
const side = {
  backend: 'llama',
  version: '1',
  model: 'größer',
  modelDigest: 'ab'.repeat(32),
  weights: 'q8_0',
  fingerprint: 'cd'.repeat(32),
  cacheLayout: 'plain',
  wireType: 'f16' as const,
  chunkTokens: 512,
};
const RECORD: QualificationRecord = {
  schema: 1,
  madeAt: '2026-01-02T03:04:05.678Z',
  muser: '0.1.0',
  producer: side,
  reference: side,
  prompts: [{ kind: 'short', tokens: 10, answer: null, producerSpeed: null, referenceSpeed: 12.5 }],
  layers: [{ layer: 0, kind: 'global', k: figures, v: figures, limits: { k: limits, v: limits } }],
  thresholds: {
    producer: 'bf16',
    reference: 'q8_0',
    basis: 'measured',
    exact: true,
    logitDifference: 1,
    sameFirstTokens: 1,
    equalTokens: 0.9,
  },
  verdict: 'failed',
  failures: ['the decoder cannot install these rows'],
  cause: { layer: 0, kinds: ['k'], promptTokens: 10, cause: 'unknown', detail: 'nothing' },
};

interface File {
  record: Record<string, unknown>;
  signature: Record<string, string>;
}

describe('canonical JSON', () => {
  it('is the same for equal values', () => {
    const value: Json = { b: [1, { z: null, a: 'é\n' }], a: 0.1, '€': true, '10': 1, '9': 2 };
    const same: Json = { '9': 2, '€': true, a: 0.1, '10': 1, b: [1, { a: 'é\n', z: null }] };
    expect(canonicalJson(value)).toBe(canonicalJson(same));
    expect(canonicalJson(value)).toBe('{"10":1,"9":2,"a":0.1,"b":[1,{"a":"é\\n","z":null}],"€":true}');
  });

  it('refuses numbers without a form', () => {
    for (const number of [NaN, Infinity]) expect(() => canonicalJson({ number })).toThrow(RangeError);
  });
});

describe('a record', () => {
  const { seed, publicKey } = generateSigningKey();
  const signer = { kind: 'local' as const, key: signingKeyFromSeed(seed) };
  const sealed = (): File => JSON.parse(sealRecord(RECORD, signer)) as File;

  it('says who signed it', () => {
    expect(openRecord(sealRecord(RECORD, signer))).toEqual({
      record: RECORD,
      signer: 'local',
      nodeId: nodeIdOf(publicKey),
    });
  });

  it('holds when the file is written in another form', () => {
    const { record, signature } = sealed();
    const turned = Object.fromEntries(Object.entries(record).reverse());
    expect(openRecord(JSON.stringify({ signature, record: turned })).record).toEqual(RECORD);
  });

  it.each([
    ['the verdict', (file: File) => (file.record['verdict'] = 'passed')],
    [
      'a figure',
      (file: File) => ((file.record['layers'] as { k: { distance: number } }[])[0] ?? { k: figures }).k.distance++,
    ],
    ['a field more', (file: File) => (file.record['note'] = 'x')],
    ['a field less', (file: File) => delete file.record['cause']],
    ['the kind of signer', (file: File) => (file.signature['signer'] = 'node')],
    ['the node', (file: File) => (file.signature['nodeId'] = nodeIdOf(generateSigningKey().publicKey))],
    [
      'the key',
      (file: File) => (file.signature['publicKey'] = Buffer.from(generateSigningKey().publicKey).toString('base64')),
    ],
    ['the signature', (file: File) => (file.signature['value'] = Buffer.alloc(64).toString('base64'))],
    [
      'a key that fits every signature',
      (file: File) => (file.signature['publicKey'] = Buffer.alloc(32).toString('base64')),
    ],
  ])('does not hold when somebody changed %s', (_, change) => {
    const file = sealed();
    change(file);
    expect(() => openRecord(JSON.stringify(file))).toThrow(
      expect.objectContaining({ code: 'SIGNATURE_INVALID' }) as Error,
    );
  });

  it('does not hold with a signature of another domain', () => {
    const file = sealed();
    const parts = [Buffer.from('local'), Buffer.from(canonicalJson(file.record as Json))];
    file.signature['value'] = Buffer.from(signer.key.sign('muser/1/ticket', ...parts)).toString('base64');
    expect(() => openRecord(JSON.stringify(file))).toThrow(
      expect.objectContaining({ code: 'SIGNATURE_INVALID' }) as Error,
    );
  });

  it.each(['', '[]', '{}', 'null', '{"record":1}', '{"record":{},"signature":{}}'])('is not %s', (content) => {
    expect(() => openRecord(content)).toThrow(expect.objectContaining({ code: 'MESSAGE_INVALID' }) as Error);
  });

  it.each([
    ['"verdict":', '"verdict":"passed","verdict":'],
    ['"record":', '"record":{},"record":'],
    ['"cosine":', '"\\u0063osine":2,"cosine":'],
    ['"nodeId":', '"nodeId":"a:b","nodeId":'],
  ])('is not one with a name twice: %s', (once, twice) => {
    const file = sealed();
    const content = JSON.stringify(file).replace(once, twice);
    expect(() => openRecord(content)).toThrow(expect.objectContaining({ code: 'MESSAGE_INVALID' }) as Error);
  });

  it('holds with colons and quotation marks in its texts', () => {
    const record = { ...RECORD, failures: ['a: "b": \\', 'c:"'] };
    expect(openRecord(sealRecord(record, signer)).record).toEqual(record);
  });

  it('may be replaced by another, and nothing else may', () => {
    const file = sealed();
    expect(RECORD_FILE.isEarlier(JSON.stringify(file))).toBe(true);
    file.signature['value'] = '';
    expect(RECORD_FILE.isEarlier(JSON.stringify(file))).toBe(true);
    delete file.record['verdict'];
    for (const content of [JSON.stringify(file), '', '{}', 'GGUF']) expect(RECORD_FILE.isEarlier(content)).toBe(false);
  });

  it('has a greatest length', () => {
    expect(() => openRecord(' '.repeat((1 << 20) + 1))).toThrow(
      expect.objectContaining({ code: 'MESSAGE_TOO_LARGE' }) as Error,
    );
  });
});

describe('the key of a record', () => {
  let folder: string;
  beforeEach(async () => (folder = await mkdtemp(join(tmpdir(), 'muser-signer-'))));
  afterEach(() => rm(folder, { recursive: true }));

  it("is the node's where there is one", async () => {
    const authority = await TestAuthority.create();
    const identity = await authority.identity('producer');
    await writeIdentityFolder(join(folder, 'identity'), identity);
    const { nodeId } = await loadIdentity(join(folder, 'identity'));
    const { kind, key } = await recordSigner(folder);
    expect([kind, nodeIdOf(key.publicKey)]).toEqual(['node', nodeId]);
  });

  it('is made once otherwise, for its owner alone', async () => {
    const firsts = await Promise.all([1, 2, 3, 4].map(() => recordSigner(folder)));
    const again = await recordSigner(folder);
    expect(again.kind).toBe('local');
    for (const { key } of firsts) expect(key.publicKey).toEqual(again.key.publicKey);
    expect((await stat(join(folder, 'qualification-key.json'))).mode & 0o777).toBe(0o600);
  });

  it('is not used when others can read it, or it is damaged, and no message has it', async () => {
    await recordSigner(folder);
    const path = join(folder, 'qualification-key.json');
    await chmod(path, 0o644);
    await expect(recordSigner(folder)).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
    await chmod(path, 0o600);
    const half = (await readFile(path, 'utf8')).slice(0, 30);
    await writeFile(path, half);
    const error: unknown = await recordSigner(folder).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'CONFIG_INVALID' });
    expect(String(error)).not.toContain(half.slice(10));
  });
});

describe('thresholds', () => {
  it('grow with depth, and each says why', () => {
    for (const { k, v, logitDifference, sameFirstTokens, equalTokens, basis } of THRESHOLDS) {
      for (const limit of [k, v, logitDifference, sameFirstTokens, equalTokens]) {
        expect(limit.why.length).toBeGreaterThan(20);
        if (basis === 'published') expect(limit.why).toMatch(/^NOT MEASURED|^Published/);
      }
      for (const { distance, peak, cosine } of [k, v]) {
        expect(distance.last).toBeGreaterThan(distance.first);
        expect(peak.last).toBeGreaterThan(peak.first);
        expect(cosine.last).toBeLessThan(cosine.first);
      }
    }
  });

  it('are those of the pair, or the most careful ones', () => {
    expect(thresholdsFor('nvfp4', 'q4_k_m')).toMatchObject({ exact: true, thresholds: { basis: 'published' } });
    expect(thresholdsFor('bf16', 'q4_k_m')).toMatchObject({ exact: true, thresholds: { basis: 'measured' } });
    const [careful] = THRESHOLDS;
    expect(thresholdsFor('fp8', 'q2_k')).toEqual({ thresholds: careful, exact: false });
    for (const { k } of THRESHOLDS) expect(k.distance.first).toBeGreaterThanOrEqual(careful.k.distance.first);
  });

  it('lie on a line from the first layer to the last', () => {
    expect([0, 1, 2].map((layer) => atDepth({ first: 1, last: 3 }, layer, 3))).toEqual([1, 2, 3]);
    expect(atDepth({ first: 1, last: 3 }, 0, 1)).toBe(3);
  });
});
