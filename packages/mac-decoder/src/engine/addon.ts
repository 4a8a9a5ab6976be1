import { setEngineLog } from '@muser/metal';
import type { Logger } from '@muser/service-kit';

/** Puts llama.cpp's warnings and errors into this process's log. */
export function logEngine(logger: Logger): void {
  setEngineLog((level, message) => logger[level](message.trimEnd()));
}
