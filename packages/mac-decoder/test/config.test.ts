import { configTable } from '@muser/service-kit';
import { expect, test } from 'vitest';
import { decoderConfigSchema, ENV_PREFIX } from '../src/config.js';

test('every setting is described for docs/CONFIG.md', () => {
  const table = configTable(decoderConfigSchema, ENV_PREFIX);
  for (const key of Object.keys(decoderConfigSchema.shape)) expect(table).toContain(`| \`${key}\` |`);
  expect(table).toContain('MUSER_DECODER_CONTEXT_TOKENS');
});

test('the configuration of the contract is enough', () => {
  const config = decoderConfigSchema.parse({ stateDir: '/s', model: '/m' });
  expect(config).toMatchObject({ host: '127.0.0.1', port: 0, maxSequences: 4, coordinator: null, prefill: 'auto' });
  expect(() => decoderConfigSchema.parse({ stateDir: '/s', model: '/m', coordinator: 'nowhere' })).toThrow();
});
