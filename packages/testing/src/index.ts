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
export { type Direction } from './fault-direction.js';
export { FaultProxy, type ConnectionFaults, type FaultProxyOptions, type ProxiedConnection } from './fault-proxy.js';
export { type ByteRange, type Faults } from './faults.js';
export { Choices } from './fuzzing/choices.js';
export { fuzz, type FuzzOptions, type FuzzResult } from './fuzzing/fuzzer.js';
export { mutatedJson, PLANTED_SECRET } from './fuzzing/json.js';
export { mutated, type Chooser } from './fuzzing/mutations.js';
export { TargetProcess, type Outcome, type TargetCommand } from './fuzzing/target-process.js';
export { floodInEveryWay, type FloodOptions } from './http2-floods.js';
export { RawHttp2, type RawHttp2Options } from './raw-http2.js';
export { cpuSeconds, processesBelow, treeCpuSeconds } from './process-tree.js';
export { Random } from './random.js';
export { statesTable, type StatesCell } from './states-table.js';
export { TinyModel, type TinyModelOptions } from './tiny-models/index.js';
export { type TinyArchitecture } from './tiny-models/architectures.js';
export { ggufFile, type GgufValue, type Tensor } from './tiny-models/gguf-file.js';
export { tokenizerMetadata, VOCABULARY_SIZE } from './tiny-models/tokenizer.js';
