// The backend over the real bridge, with a worker of four ranks (two of layers by two of heads) that computes patterns.
import { describeBackendCompliance } from './backend-compliance.js';
import { openFake } from './support/fake-vllm.js';
import { patternRows } from './support/pattern-backend.js';

describeBackendCompliance('vLLM (a pattern behind the bridge)', {
  open: () => openFake({ ranks: 4 }),
  referenceRows: (tokens) => Promise.resolve(patternRows(tokens, 'bf16')),
});
