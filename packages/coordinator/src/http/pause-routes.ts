import type { HttpServer } from '@muser/service-kit';

import type { PauseOrders } from '../nodes/pause-orders.js';
import { nodeParams, parseInput, pauseBody, resumeBody } from './bodies.js';
import { goneSignal } from './gone-signal.js';
import { viewOf } from './views.js';

/** They answer when the producer is as ordered. A caller that leaves ends the wait, not the order. */
export function addPauseRoutes(api: HttpServer['app'], orders: PauseOrders): void {
  api.post('/nodes/:id/pause', async (request, reply) => {
    const { id } = parseInput(nodeParams, request.params);
    const order = { ...parseInput(pauseBody, request.body ?? {}), paused: true };
    return { node: viewOf(await orders.give(id, order, goneSignal(reply.raw))) };
  });

  api.post('/nodes/:id/resume', async (request, reply) => {
    const { id } = parseInput(nodeParams, request.params);
    const order = { ...parseInput(resumeBody, request.body ?? {}), paused: false, cancelRunning: false };
    return { node: viewOf(await orders.give(id, order, goneSignal(reply.raw))) };
  });
}
