import type { NodeStatus } from '@muser/protocol';

import type { TestPeer } from './test-bed.js';

export interface OrderDetails {
  cancelRunning?: boolean;
  deadlineMs?: number;
}

/** Gives the order to pause or resume as the coordinator does; the states that it hears until it is done. */
export async function orderPause(
  coordinator: TestPeer,
  paused: boolean,
  { cancelRunning = false, deadlineMs = 50_000 }: OrderDetails = {},
): Promise<string[]> {
  const states: string[] = [];
  const request = { protocolVersion: 1, paused, cancelRunning, deadlineMs };
  for await (const { state } of coordinator.client.setPaused(request)) if (states.at(-1) !== state) states.push(state);
  return states;
}

/** What the producer tells the coordinator of itself now. */
export async function statusFor(coordinator: TestPeer): Promise<NodeStatus> {
  const updates = coordinator.client.watchNode({ protocolVersion: 1, intervalMs: 100 });
  const { value } = await updates.next();
  await updates.return();
  if (value === undefined) throw new Error('no status');
  return value;
}
