import { expect, it } from 'vitest';
import { ownVariables } from '../src/producer-run/own-variables.js';

it("the operator's settings reach the producer, but for those that the command line makes", () => {
  const env = {
    PATH: '/bin',
    MUSER_STATE: '/elsewhere',
    MUSER_PRODUCER_STATE_DIR: '/elsewhere',
    MUSER_PRODUCER_PORT: '1',
    MUSER_PRODUCER_MAX_CONCURRENT: '2',
    MUSER_PRODUCER_VLLM_KV_CACHE_BYTES: '1048576',
  };
  expect(ownVariables(env)).toEqual({
    MUSER_PRODUCER_MAX_CONCURRENT: '2',
    MUSER_PRODUCER_VLLM_KV_CACHE_BYTES: '1048576',
  });
});
