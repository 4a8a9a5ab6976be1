import { EXIT, printReady, readJsonObject, type Command } from '@muser/service-kit';
import { createIdentity, installIdentity } from './identity.js';
import type { IdentityBundle, Role } from './types.js';

/** A bundle is two certificates and two short texts. */
const MAX_BUNDLE_BYTES = 64 * 1024;

/** How a node of that role is enrolled: `create` prints what the coordinator needs, `install` reads its answer. */
export function identityCommands(role: Role): readonly Command[] {
  return [
    {
      words: ['identity', 'create'],
      flags: ['dir'],
      run: async ({ dir = '' }) => {
        printReady({ ...(await createIdentity(dir, role)) });
        return EXIT.ok;
      },
    },
    {
      // Not run on a Mac yet; the muser that is on one asks for it when its user does.
      words: ['identity', 'create-in-keychain'],
      flags: ['dir'],
      run: async ({ dir = '' }) => {
        printReady({ ...(await createIdentity(dir, role, 'keychain')) });
        return EXIT.ok;
      },
    },
    {
      words: ['identity', 'install'],
      flags: ['dir'],
      run: async ({ dir = '' }) => {
        // What the object holds is installIdentity's to check.
        await installIdentity(dir, (await readJsonObject(process.stdin, MAX_BUNDLE_BYTES)) as IdentityBundle);
        return EXIT.ok;
      },
    },
  ];
}
