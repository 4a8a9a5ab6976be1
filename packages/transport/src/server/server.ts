import { Server } from '@grpc/grpc-js';
import { prepareMemory } from '../memory.js';
import { SERVER_OPTIONS } from '../options.js';
import { ConnectionTable } from './connections.js';
import { requestGate } from './request-gate.js';

const tables = new WeakMap<Server, ConnectionTable>();

/** A gRPC server with this package's limits; add services to it, then listen. */
export function createServer(): Server {
  prepareMemory();
  const connections = new ConnectionTable();
  const server = new Server({ ...SERVER_OPTIONS, interceptors: [requestGate(connections)] });
  tables.set(server, connections);
  return server;
}

/** The table that the services of a server and its listeners share. */
export function connectionsOf(server: Server): ConnectionTable {
  const table = tables.get(server);
  if (table === undefined) throw new Error('the server was not made by createServer()');
  return table;
}
