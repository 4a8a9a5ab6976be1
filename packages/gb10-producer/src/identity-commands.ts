import { type Command, EXIT, printReady, readJsonObject } from '@muser/service-kit';
import { createIdentity, type IdentityBundle, installIdentity } from '@muser/transport';

/** A bundle is two certificates and two short strings. */
const MAX_BUNDLE_BYTES = 64 * 1024;

/** How a producer is enrolled: `create` prints what the coordinator needs, `install` reads its answer. */
export const identityCommands: readonly Command[] = [
  {
    words: ['identity', 'create'],
    flags: ['dir'],
    run: async ({ dir = '' }) => {
      printReady({ ...(await createIdentity(dir, 'producer')) });
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
