import { fields } from '@muser/service-kit';
import { z } from 'zod';

export const ENV_PREFIX = 'MUSER_COORDINATOR_';

/** The coordinator's settings; docs/CONFIG.md shows them as a table made from this. */
export const configSchema = z.strictObject({
  stateDir: fields.stateDir(),
  httpHost: fields.host('Address of the operator API. Loopback only.'),
  httpPort: fields.port('Port of the operator API.'),
  grpcHost: fields.host(
    "Address for decoders. Loopback unless decoders run on other machines; then this machine's address on their network.",
  ),
  grpcPort: fields.port('Port for decoders.'),
  logLevel: fields.logLevel(),
  exitWithParent: fields.exitWithParent(),
});

export type CoordinatorConfig = z.output<typeof configSchema>;
