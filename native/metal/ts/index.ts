export { commonLength } from './common-length.js';
export { EngineError, type EngineErrorCode } from './errors.js';
export { probeAddon, requireAddon, type AddonProbe } from './probe.js';
export {
  checkModelFile,
  loadModel,
  type LoadModelOptions,
  type Model,
  type ModelInfo,
  type TextPiece,
} from './model.js';
export { Engine, type EngineOptions, type EngineStats } from './engine.js';
export {
  type EvaluateOptions,
  type GenerateOptions,
  type GenerateOutput,
  type GenerateResult,
  type Sequence,
} from './sequence.js';
export { GREEDY } from './greedy.js';
export { type KvExport, type KvStage } from './kv.js';
export { engineVersion, setEngineLog, type CacheType, type KvKind, type LayerKind, type WireType } from './native.js';
