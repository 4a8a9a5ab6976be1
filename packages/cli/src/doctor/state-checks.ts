import { X509Certificate } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { MuserError } from '@muser/protocol';
import { identityKeyPlace, loadIdentity, peerOf } from '@muser/transport';
import { isMissing } from '../files.js';
import { type StateLayout } from '../state.js';
import { failed, ok, warning, type Check } from './check.js';

const DAY_MS = 24 * 60 * 60 * 1000;
/** `muser dev` asks for new certificates at each start, so this only strikes a system that ran for very long. */
const RENEW_WITHIN_DAYS = 3;

/** Keys and tokens are for their owner only. */
export async function checkStateFolder(layout: StateLayout): Promise<Check> {
  const folders = [layout.root, layout.coordinator, layout.producer, layout.decoder, layout.logs];
  const files = [layout.operatorTokenFile];
  let present = 0;
  for (const path of [...folders, ...files]) {
    try {
      const { mode, uid } = await stat(path);
      present += 1;
      if (process.getuid !== undefined && uid !== process.getuid()) {
        return failed('state', `${path} belongs to another user`, 'Choose a folder of your own with --state.');
      }
      if ((mode & 0o077) !== 0) {
        return failed('state', `${path} is open to other users`, `Run: chmod go-rwx '${path}'`);
      }
    } catch (error) {
      if (!isMissing(error)) return failed('state', `${path}: ${String(error)}`, 'Choose another folder with --state.');
    }
  }
  if (present === 0)
    return warning('state', `${layout.root} is not there yet`, 'Run `muser dev`; it makes everything.');
  return ok('state', `${layout.root}, closed to other users`);
}

/** The certificate of each role, by what its own program would find when it starts. */
export async function checkCertificates(layout: StateLayout): Promise<Check[]> {
  const roles = [
    ['coordinator', layout.coordinator],
    ['producer', layout.producer],
    ['decoder', layout.decoder],
  ] as const;
  const checks: Check[] = [];
  for (const [role, folder] of roles) {
    const dir = join(folder, 'identity');
    if (!(await exists(dir))) continue;
    checks.push(await checkCertificate(`${role} certificate`, dir));
  }
  return checks;
}

async function checkCertificate(name: string, dir: string): Promise<Check> {
  const advice = 'Run `muser dev` again with this state folder: it asks for new certificates at each start.';
  try {
    const identity = await loadIdentity(dir);
    const { notAfter } = peerOf(new X509Certificate(identity.tlsCertificatePem));
    const days = Math.floor((notAfter.getTime() - Date.now()) / DAY_MS);
    const until = `valid until ${notAfter.toISOString().slice(0, 10)} (${days} days)`;
    const detail = `${identity.nodeId}, ${until}, identity key in ${await identityKeyPlace(dir)}`;
    return days > RENEW_WITHIN_DAYS ? ok(name, detail) : warning(name, detail, advice);
  } catch (error) {
    if (!(error instanceof MuserError)) throw error;
    return failed(name, `${error.message} (${error.code})`, advice);
  }
}

async function exists(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}
