import { describe, expect, it } from 'vitest';
import { formatTarget, parseTarget } from '../src/index.js';
import { grpcTarget } from '../src/target.js';

describe('targets', () => {
  it.each([
    ['127.0.0.1:50051', { host: '127.0.0.1', port: 50051 }, 'ipv4:127.0.0.1:50051'],
    ['[::1]:1', { host: '::1', port: 1 }, 'ipv6:[::1]:1'],
    ['[fe80::1%eth0]:65535', { host: 'fe80::1%eth0', port: 65535 }, 'ipv6:[fe80::1%eth0]:65535'],
    ['spark-1.local:443', { host: 'spark-1.local', port: 443 }, 'dns:spark-1.local:443'],
    ['localhost:8080', { host: 'localhost', port: 8080 }, 'dns:localhost:8080'],
  ])('reads %s and writes it again', (text, parsed, grpc) => {
    expect(parseTarget(text)).toEqual(parsed);
    expect(formatTarget(parsed)).toBe(text);
    expect(grpcTarget(text)).toBe(grpc);
  });

  it.each([
    '',
    'host',
    'host:',
    'host:0',
    'host:65536',
    'host:1:2',
    '::1:50051',
    '[::1]',
    '[host]:1',
    'unix:/tmp/socket',
    'dns:///host:1',
    'http://host:1',
    'user@host:1',
    'a b:1',
    '-x:1',
    `${'a'.repeat(300)}:1`,
  ])('refuses %j', (text) => {
    expect(() => parseTarget(text)).toThrow(expect.objectContaining({ code: 'INVALID_REQUEST' }));
  });
});
