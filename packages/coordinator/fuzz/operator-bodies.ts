// Bodies of the operator's HTTP interface: each is taken, or refused with a MuserError that does not repeat its values; an
// enrollment whose proofs were not made by the node's own keys is always refused.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { isErrorCode, MuserError } from '@muser/protocol';
import { Choices, mutated, mutatedJson, PLANTED_SECRET } from '@muser/testing';
import type { IdentityRequest } from '@muser/transport';
import { PemConverter } from '@peculiar/x509';
import { verifyRequest } from '../src/ca/enrollment-request.js';
import {
  changeBody,
  enrollBody,
  nodeParams,
  parseInput,
  pauseBody,
  resumeBody,
  rotateBody,
} from '../src/http/bodies.js';

/** What a node sends to be enrolled; its keys were thrown away. */
const request = JSON.parse(
  readFileSync(new URL('enrollment-request.json', import.meta.url), 'utf8'),
) as IdentityRequest;

type Body = Parameters<typeof parseInput>[0];
const examples: readonly [Body, object][] = [
  [enrollBody, { name: 'gb10-1', role: 'producer', addresses: ['10.0.0.2:7443', '[fe80::1]:7443'], request }],
  [changeBody, { name: 'gb10-1', addresses: ['10.0.0.2:7443'] }],
  [pauseBody, { cancelRunning: true, deadlineMs: 1_000 }],
  [resumeBody, { deadlineMs: 1_000 }],
  [nodeParams, { id: 'nabcdefghijklmnopqrstuvwxyz' }],
  [rotateBody, { deadlineMs: 1_000 }],
];

export async function fuzz(input: Buffer): Promise<void> {
  const choose = new Choices(input);
  const [schema, example] = choose.pick(examples);
  await refusedOr(() => parseInput(schema, mutatedJson(choose, example)));

  const changed = changedRequest(choose);
  const enrolled = await refusedOr(() => verifyRequest(changed));
  if (enrolled === null) return;
  const original = await verifyRequest(request);
  assert.equal(enrolled.nodeId, original.nodeId, 'enrolled under another name');
  assert.deepEqual(enrolled.signingPublicKey, original.signingPublicKey);
}

function changedRequest(choose: Choices): IdentityRequest {
  const base64 = (text: string): string => mutated(choose, Buffer.from(text, 'base64')).toString('base64');
  const pem = (text: string): string => {
    const bytes = Uint8Array.from(mutated(choose, Buffer.from(PemConverter.decodeFirst(text))));
    return PemConverter.encode(bytes.buffer, 'CERTIFICATE REQUEST');
  };
  return choose.pick<() => IdentityRequest>([
    () => ({ ...request, signingPublicKey: base64(request.signingPublicKey) }),
    () => ({ ...request, proof: base64(request.proof) }),
    () => ({ ...request, csrPem: pem(request.csrPem) }),
    () => ({ ...request, csrPem: mutated(choose, Buffer.from(request.csrPem)).toString('latin1') }),
  ])();
}

async function refusedOr<T>(call: () => T | Promise<T>): Promise<T | null> {
  try {
    return await call();
  } catch (error) {
    if (!(error instanceof MuserError) || !isErrorCode(error.code)) throw error;
    assert(!error.message.includes(PLANTED_SECRET.repeat(2)), 'an error repeats a value');
    return null;
  }
}

export function seeds(): [string, Buffer][] {
  return examples.map((_, at) => [`body-${at}`, Buffer.from([at, 0, 1, at, 2, 3, 0, 1, 2])]);
}
