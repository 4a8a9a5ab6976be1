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
export { FaultProxy, type ConnectionFaults, type FaultProxyOptions } from './fault-proxy.js';
export { type ByteRange, type Faults } from './faults.js';
export { cpuSeconds, processesBelow, treeCpuSeconds } from './process-tree.js';
export { Random } from './random.js';
export { statesTable, type StatesCell } from './states-table.js';
export { TinyModel, type TinyModelOptions } from './tiny-models/index.js';
export { type TinyArchitecture } from './tiny-models/architectures.js';
export { ggufFile, type GgufValue, type Tensor } from './tiny-models/gguf-file.js';
export { tokenizerMetadata, VOCABULARY_SIZE } from './tiny-models/tokenizer.js';
