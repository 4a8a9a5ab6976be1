import type { EventEmitter } from 'node:events';

import { MuserError } from '@muser/protocol';

/** Aborts when the caller has left. */
export function goneSignal(response: EventEmitter): AbortSignal {
  const gone = new AbortController();
  response.once('close', () => gone.abort(new MuserError('CANCELLED', 'the caller is gone')));
  return gone.signal;
}
