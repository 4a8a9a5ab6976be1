import { DecoderClient } from '../decoder-client.js';
import { CliError } from '../exit.js';
import type { StateLayout } from '../state.js';
import { CoordinatorClient } from '../system/coordinator-client.js';
import { failed, ok, warning, type Check } from './check.js';

export async function checkDecoder(url: URL, signal: AbortSignal): Promise<Check> {
  try {
    const health = await new DecoderClient(url).health(signal);
    const producers = health.producers.map(({ name, state }) => `${name} ${state}`).join(', ') || 'none';
    const detail = `${url.origin}, coordinator ${health.coordinator}, producers: ${producers}`;
    if (health.producers.length > 0) return ok('decoder', detail);
    return warning('decoder', detail, 'Without a producer every prefill is local. See `muser node list`.');
  } catch (error) {
    return fromError('decoder', error);
  }
}

export async function checkCoordinator(base: string, layout: StateLayout, signal: AbortSignal): Promise<Check> {
  try {
    const client = await CoordinatorClient.open(base, layout);
    const { nodes } = await client.nodes(signal);
    const bad = nodes.filter(({ state }) => state === 'unreachable' || state === 'error');
    const detail = `${base}, ${nodes.length} nodes`;
    if (bad.length === 0) return ok('coordinator', detail);
    return warning(
      'coordinator',
      `${detail}, of which ${bad.map(({ name, state }) => `${name} ${state}`).join(', ')}`,
      'Look at the log of that node, and at `muser node list`.',
    );
  } catch (error) {
    return fromError('coordinator', error);
  }
}

function fromError(name: string, error: unknown): Check {
  if (!(error instanceof CliError)) throw error;
  return failed(name, `${error.message} (${error.code})`, error.advice ?? 'Look at its log.');
}
