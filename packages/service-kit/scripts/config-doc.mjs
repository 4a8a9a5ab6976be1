// Writes the tables of docs/CONFIG.md from the processes' schemas, or compares them (--check). Build first.
// The schemas are loaded by path, as the processes are started by path: no package depends on a process.
import console from 'node:console';
import { readFileSync, writeFileSync } from 'node:fs';
import process from 'node:process';

import { configTable } from '../dist/index.js';

const path = new URL('../../../docs/CONFIG.md', import.meta.url);
const machineDependent = { threads: "half of the machine's cores" };

const coordinator = await import('../../coordinator/dist/config.js');
const producer = await import('../../gb10-producer/dist/config.js');
const decoder = await import('../../mac-decoder/dist/config.js');
const tables = {
  coordinator: configTable(coordinator.configSchema, coordinator.ENV_PREFIX),
  producer: configTable(producer.producerConfigSchema, producer.ENV_PREFIX, machineDependent),
  decoder: configTable(decoder.decoderConfigSchema, decoder.ENV_PREFIX, machineDependent),
};

const before = readFileSync(path, 'utf8');
const after = Object.entries(tables).reduce((document, [name, table]) => replace(document, name, table), before);
if (!process.argv.includes('--check')) {
  writeFileSync(path, after);
} else if (after !== before) {
  console.error('docs/CONFIG.md is not what the schemas say: run node packages/service-kit/scripts/config-doc.mjs');
  process.exitCode = 1;
}

/** The text between the two marks of a section replaced by its table. */
function replace(document, name, table) {
  const [begin, end] = [`<!-- ${name}: generated, do not edit -->`, `<!-- ${name}: end -->`];
  const [from, to] = [document.indexOf(begin), document.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`docs/CONFIG.md has no marks for ${name}`);
  return `${document.slice(0, from + begin.length)}\n\n${table}\n${document.slice(to)}`;
}
