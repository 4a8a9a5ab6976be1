// The transfer tests stand on this backend, so it has to keep the rules that the real ones keep.
import { describeBackendCompliance } from './backend-compliance.js';
import { PatternBackend, patternRows } from './support/pattern-backend.js';

describeBackendCompliance('the pattern', {
  open: () => Promise.resolve(new PatternBackend()),
  referenceRows: (tokens) => Promise.resolve(patternRows(tokens)),
});
