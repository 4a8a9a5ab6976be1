import { fileURLToPath } from 'node:url';
import { loadSync, type MethodDefinition } from '@grpc/proto-loader';
import { describe, expect, it } from 'vitest';
import { HANDOFF_SERVICE, NODE_SERVICE, PLACEMENT_SERVICE } from '../src/index.js';

const folder = fileURLToPath(new URL('../../../proto', import.meta.url));
const files = ['handoff', 'node', 'placement'].map((name) => `muser/v1/${name}.proto`);
const described = loadSync(files, { includeDirs: [folder] });

const ours = {
  'muser.v1.Handoff': HANDOFF_SERVICE,
  'muser.v1.Node': NODE_SERVICE,
  'muser.v1.Placement': PLACEMENT_SERVICE,
};

describe('service definitions', () => {
  it('offers exactly the services of proto/muser/v1', () => {
    const services = Object.keys(described).filter((name) => !('format' in described[name]!));
    expect(services.sort()).toEqual(Object.keys(ours).sort());
  });

  it.each(Object.entries(ours))('%s has the methods of its .proto file', (name, service) => {
    const methods = described[name] as Record<string, MethodDefinition<object, object>>;
    const shape = (definition: { path: string; requestStream: boolean; responseStream: boolean }) => ({
      path: definition.path,
      requestStream: definition.requestStream,
      responseStream: definition.responseStream,
    });
    const expected = Object.fromEntries(Object.entries(methods).map(([method, it]) => [method, shape(it)]));
    expect(Object.fromEntries(Object.entries(service).map(([method, it]) => [method, shape(it)]))).toEqual(expected);
  });
});
