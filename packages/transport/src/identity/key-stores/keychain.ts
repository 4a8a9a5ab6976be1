import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { MuserError } from '@muser/protocol';
import { parseSeed, type KeyStore } from './key-store.js';

const PROGRAM = '/usr/bin/security';
const SERVICE = 'muser identity key';
const ANSWER_LIMIT_MS = 30_000;
const MAX_OUTPUT_BYTES = 4_096;
/** errSecItemNotFound, as `security` gives it. */
const EXIT_NOT_FOUND = 44;

/** How `security` is called: what is secret goes over standard input, because everybody can read a command line. */
export interface SecurityCall {
  readonly args: readonly string[];
  readonly input: string;
}

/** Prints the secret. @param account tells the nodes of one user apart */
export function findCall(account: string): SecurityCall {
  return { args: ['find-generic-password', '-s', SERVICE, '-a', account, '-w'], input: '' };
}

/** Keeps the secret; fails when there is one. `security -i` reads its commands from standard input. */
export function addCall(account: string, seed: Uint8Array): SecurityCall {
  const secret = Buffer.from(seed).toString('base64');
  const words = ['add-generic-password', '-s', SERVICE, '-a', account, '-w', secret];
  return { args: ['-i'], input: `${words.map(quoted).join(' ')}\n` };
}

/** The user's login keychain on macOS. It has not run on a Mac yet: only these command lines are tested. */
export class KeychainKeyStore implements KeyStore {
  readonly kind = 'keychain';
  readonly place = `the macOS keychain ("${SERVICE}")`;
  readonly #account: string;

  /** @param dir the identity's folder, whose path tells the nodes of one user apart */
  constructor(dir: string) {
    this.#account = dir;
  }

  async read(): Promise<Uint8Array | null> {
    const { code, output } = await this.#run(findCall(this.#account));
    if (code === EXIT_NOT_FOUND) return null;
    if (code === 0) return parseSeed(output, this.place);
    const message = `${this.place} cannot be read (security: ${code}): unlock it with \`security unlock-keychain\``;
    throw new MuserError('CONFIG_INVALID', message);
  }

  async create(seed: Uint8Array): Promise<void> {
    const { code } = await this.#run(addCall(this.#account, seed));
    // In interactive mode the exit code says little: whether there is a key now is found out by reading it.
    if (code !== 0) throw new MuserError('UNAVAILABLE', `${this.place} took no key (security: ${code})`);
  }

  /** Neither what it prints nor its errors are shown: they may quote the secret. */
  async #run({ args, input }: SecurityCall): Promise<{ code: number; output: string }> {
    const child = spawn(PROGRAM, args, { stdio: ['pipe', 'pipe', 'ignore'], timeout: ANSWER_LIMIT_MS });
    let output = '';
    child.stdout.on('data', (data: Buffer) => (output = (output + data.toString()).slice(0, MAX_OUTPUT_BYTES)));
    child.stdin.on('error', () => undefined).end(input);
    try {
      const [code] = (await once(child, 'close')) as [number | null];
      return { code: code ?? -1, output };
    } catch (cause) {
      throw new MuserError('CONFIG_INVALID', `${PROGRAM} cannot be run: keychains are there on macOS only`, { cause });
    }
  }
}

/** For the parser of `security -i`: in double quotes, a backslash before what ends or escapes them. */
function quoted(word: string): string {
  return `"${word.replace(/["\\]/g, '\\$&')}"`;
}
