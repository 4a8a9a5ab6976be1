import type { HttpServer } from '@muser/service-kit';

import type { CertificateRenewals } from '../nodes/certificate-renewals.js';
import { nodeParams, parseInput, rotateBody } from './bodies.js';
import { goneSignal } from './gone-signal.js';
import { viewOf } from './views.js';

/** Answers when the node has its new certificate. */
export function addRenewalRoutes(api: HttpServer['app'], renewals: CertificateRenewals): void {
  api.post('/nodes/:id/rotate', async (request, reply) => {
    const { id } = parseInput(nodeParams, request.params);
    const { deadlineMs } = parseInput(rotateBody, request.body ?? {});
    return { node: viewOf(await renewals.renew(id, deadlineMs, goneSignal(reply.raw))) };
  });
}
