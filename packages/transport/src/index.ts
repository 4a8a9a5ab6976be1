export { ByteBudget } from './budget.js';
export { PeerClient, type ConnectOptions, type PrefillOptions, type WatchOptions } from './client/peer-client.js';
export { hashInline, hashOnPool, hashPayload, type PayloadHash } from './hashing.js';
export { identityCommands } from './identity/commands.js';
export { createIdentity, identityKeyPlace, installIdentity, loadIdentity } from './identity/identity.js';
export { LiveIdentity } from './identity/live-identity.js';
export { peerOf } from './identity/peer.js';
export { fromCertificateRequest } from './identity/request.js';
export type { Identity, IdentityBundle, IdentityRequest, PeerIdentity, Role } from './identity/types.js';
export * from './limits.js';
export { PeerBudgets } from './peer-budgets.js';
export { addHandoffService, type HandoffHandlers, type PrefillCall } from './server/handoff-service.js';
export { PeerListener, type ListenOptions, type TransportLogger } from './server/listener.js';
export { createServer } from './server/server.js';
export type { Authorize } from './server/stream-call.js';
export {
  addNodeService,
  addPlacementService,
  type Answer,
  type NodeHandlers,
  type PlacementHandlers,
  type WatchCall,
  type WatchHandlers,
} from './server/watch-services.js';
export { HANDOFF_SERVICE, NODE_SERVICE, PLACEMENT_SERVICE } from './services.js';
export { formatTarget, parseTarget, type HostAndPort } from './target.js';
