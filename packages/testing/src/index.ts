export {
  TestAuthority,
  writeIdentityFolder,
  type TestIdentity,
  type TestIdentityBundle,
  type TestIdentityRequest,
  type TestRole,
  type Validity,
} from './authority.js';
export { needleDocument, type NeedleDocument, type NeedleDocumentOptions } from './documents.js';
export { FaultProxy, type ConnectionFaults, type FaultProxyOptions, type Faults } from './fault-proxy.js';
export { Random } from './random.js';
