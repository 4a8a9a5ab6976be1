import { CliError, EXIT } from '../exit.js';
import { readEndpoints, stateLayout, stateRoot } from '../state.js';
import { CoordinatorClient } from '../system/coordinator-client.js';

/** The coordinator of the system that runs with a state folder. */
export async function connectCoordinator(state: string | undefined): Promise<CoordinatorClient> {
  const layout = stateLayout(stateRoot(state, process.env));
  const endpoints = await readEndpoints(layout);
  if (endpoints === null) {
    throw new CliError(EXIT.unreachable, 'PEER_UNREACHABLE', `no system runs with the state folder ${layout.root}`, {
      advice: 'Start one with `muser dev`, or name its folder with --state.',
    });
  }
  return CoordinatorClient.open(endpoints.coordinator, layout);
}
