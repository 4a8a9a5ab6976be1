import { probeAddon, setEngineLog } from '@muser/metal';
import { MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';

/**
 * Loads the addon in a child process first: a library that crashes on this machine must not take the reason with it.
 * @throws MuserError ADDON_UNAVAILABLE
 */
export async function requireAddon(): Promise<void> {
  const probe = await probeAddon();
  if (!probe.ok) throw new MuserError('ADDON_UNAVAILABLE', `${probe.reason}; ${probe.advice}`);
}

/** Puts llama.cpp's warnings and errors into this process's log. */
export function logEngine(logger: Logger): void {
  setEngineLog((level, message) => logger[level](message.trimEnd()));
}
