import { sign, createPrivateKey } from 'node:crypto';
import fc from 'fast-check';
import nacl from 'tweetnacl';
import { describe, expect, it } from 'vitest';
import { isNodeId, nodeIdOf } from '../src/ids.js';
import { generateSigningKey, signedBytes, signingKeyFromSeed, verifyingKey, type Domain } from '../src/keys.js';
import { expectCode } from './support/errors.js';

const key = signingKeyFromSeed(Buffer.alloc(32, 1));
const verifier = verifyingKey(key.publicKey);
const part = Buffer.from('part');

describe('keys', () => {
  it('are the same for tweetnacl and Node', () => {
    const made = generateSigningKey();
    const own = signingKeyFromSeed(made.seed);
    expect(Buffer.from(own.publicKey).equals(made.publicKey)).toBe(true);
    const pair = nacl.sign.keyPair.fromSeed(made.seed);
    const signature = own.sign('muser/1/shard', part);
    expect(Buffer.from(nacl.sign.detached(signedBytes('muser/1/shard', [part]), pair.secretKey))).toEqual(signature);
  });

  it('are new each time', () => {
    expect(generateSigningKey().seed).not.toEqual(generateSigningKey().seed);
  });

  it('need 32 bytes', async () => {
    await expectCode(() => signingKeyFromSeed(new Uint8Array(31)), 'INVALID_REQUEST');
    await expectCode(() => verifyingKey(new Uint8Array(33)), 'SIGNATURE_INVALID');
  });

  // promise: Keys of small order and keys that are no point of the curve are refused, and no others.
  it('that are no point of the curve are refused, others are not', () => {
    const verdicts = new Set<boolean>();
    for (let value = 2; value < 60; value++) {
      const candidate = new Uint8Array(32);
      candidate[0] = value;
      // tweetnacl refuses a key that is no point, whatever the signature; only then is the message buffer not filled.
      verdicts.add(accepts(candidate));
    }
    expect(verdicts).toEqual(new Set([true, false]));
    for (let i = 0; i < 50; i++) expect(accepts(generateSigningKey().publicKey)).toBe(true);
  });
});

function accepts(publicKey: Uint8Array): boolean {
  try {
    verifyingKey(publicKey);
    return true;
  } catch {
    return false;
  }
}

describe('signatures', () => {
  // promise: A signature holds for what was signed and for the purpose it was signed for, and for nothing else.
  it('hold for exactly their domain and parts', async () => {
    const signature = key.sign('muser/1/begin', part, part);
    verifier.verify('muser/1/begin', [part, part], signature);
    const others: [Domain, Uint8Array[]][] = [
      ['muser/1/seal', [part, part]],
      ['muser/1/begin', [part]],
      ['muser/1/begin', [Buffer.concat([part, part])]],
      ['muser/1/begin', [part, part, new Uint8Array(0)]],
      ['muser/1/begin', [part, Buffer.from('Part')]],
    ];
    for (const [domain, parts] of others) {
      await expectCode(() => verifier.verify(domain, parts, signature), 'SIGNATURE_INVALID');
    }
  });

  it('of another key, another length or without a domain are refused', async () => {
    const signature = key.sign('muser/1/begin', part);
    const other = verifyingKey(signingKeyFromSeed(Buffer.alloc(32, 2)).publicKey);
    await expectCode(() => other.verify('muser/1/begin', [part], signature), 'SIGNATURE_INVALID');
    for (const length of [0, 63, 65]) {
      const wrong = Buffer.concat([signature, Buffer.alloc(1)]).subarray(0, length);
      await expectCode(() => verifier.verify('muser/1/begin', [part], wrong), 'SIGNATURE_INVALID');
    }
    const pkcs8 = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), Buffer.alloc(32, 1)]);
    const bare = sign(null, part, createPrivateKey({ key: pkcs8, format: 'der', type: 'pkcs8' }));
    await expectCode(() => verifier.verify('muser/1/begin', [part], bare), 'SIGNATURE_INVALID');
  });

  it('are refused when any bit is changed', () => {
    const signature = key.sign('muser/1/ticket', part);
    for (let bit = 0; bit < 512; bit++) {
      const changed = Buffer.from(signature);
      changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      expect(() => verifier.verify('muser/1/ticket', [part], changed)).toThrow('not valid');
    }
  });

  it('are over bytes that no other list of parts has', () => {
    const list = fc.array(fc.uint8Array({ maxLength: 4 }), { maxLength: 4 });
    const text = (parts: Uint8Array[]): string => JSON.stringify(parts.map((item) => [...item]));
    fc.assert(
      fc.property(list, list, (a, b) => {
        const same = signedBytes('muser/1/csr', a).equals(signedBytes('muser/1/csr', b));
        expect(same).toBe(text(a) === text(b));
      }),
    );
  });
});

describe('node ids', () => {
  it('are 27 characters made from the key', () => {
    const id = nodeIdOf(key.publicKey);
    expect(isNodeId(id)).toBe(true);
    expect(nodeIdOf(key.publicKey)).toBe(id);
    expect(nodeIdOf(Buffer.alloc(32, 2))).not.toBe(id);
  });

  it.each(['', 'n', 'N'.padEnd(27, 'a'), 'n'.padEnd(28, 'a'), 'n'.padEnd(27, '1'), 7, null])('is not %s', (value) => {
    expect(isNodeId(value)).toBe(false);
  });
});
