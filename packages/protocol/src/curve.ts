// Checks of Ed25519 public keys that OpenSSL does not make when it imports one. They run once per key, so BigInt is fast
// enough (about a millisecond).

const P = 2n ** 255n - 19n;
/** d of the curve: -121665/121666 mod p. */
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;

/** y of the points whose order divides 8, without the non-canonical forms (those are refused before). */
const SMALL_ORDER_Y = new Set([
  0n,
  1n,
  P - 1n,
  2707385501144840649318225287225658788936804267575313519463743609750303402022n,
  55188659117513257062467267217118295137698188065244968500265048394206261417927n,
]);

function power(base: bigint, exponent: bigint): bigint {
  let result = 1n;
  let square = base % P;
  for (let rest = exponent; rest > 0n; rest >>= 1n) {
    if (rest & 1n) result = (result * square) % P;
    square = (square * square) % P;
  }
  return result;
}

/** What is wrong with a 32-byte public key, or null. */
export function publicKeyProblem(publicKey: Uint8Array): string | null {
  let y = 0n;
  for (let i = publicKey.length - 1; i >= 0; i--) y = (y << 8n) | BigInt(publicKey[i] ?? 0);
  y &= 2n ** 255n - 1n;
  if (y >= P) return 'is not in canonical form';
  if (SMALL_ORDER_Y.has(y)) return 'is a point of small order';
  // x^2 = (y^2 - 1) / (d y^2 + 1) needs a square on the right; u/v is a square exactly when u*v is one.
  const u = (y * y - 1n + P) % P;
  const v = (D * ((y * y) % P) + 1n) % P;
  return power((u * v) % P, (P - 1n) / 2n) === 1n ? null : 'is not a point of the curve';
}
