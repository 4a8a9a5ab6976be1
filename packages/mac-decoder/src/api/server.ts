import { createHttpServer, type HttpServer, type Logger } from '@muser/service-kit';
import type { DecoderEngine } from '../engine/decoder-engine.js';
import { toHttpError } from '../errors/http-errors.js';
import type { ProducerDirectory } from '../producers/directory.js';
import type { KvSamples } from '../requests/kv-samples.js';
import { addChatRoute, type ChatRouteOptions } from './chat-completions.js';

/** Bytes that a prompt's token takes in a request, as JSON, at most on average. */
const BODY_BYTES_PER_TOKEN = 32;
/**
 * The 4 MiB of documents that `muser ask` sends at most, as JSON. A prompt that is too long for the model is then refused
 * with the number of its tokens, not for its bytes.
 */
const MIN_BODY_BYTES = 8 << 20;

export interface ApiOptions extends ChatRouteOptions {
  readonly host: string;
  readonly directory: ProducerDirectory;
  readonly samples: Pick<KvSamples, 'counts'>;
  readonly coordinatorState: () => 'connected' | 'absent';
  readonly logger: Logger;
}

/** The decoder's HTTP API. It answers programs of this machine only; see service-kit's guard. */
export function createApi(options: ApiOptions): HttpServer {
  const { engine, host, logger } = options;
  const server = createHttpServer({
    name: 'decoder',
    host,
    logger,
    bodyLimitBytes: Math.max(MIN_BODY_BYTES, engine.contextTokens * BODY_BYTES_PER_TOKEN),
    toReply: (error) => toHttpError(error),
  });
  addChatRoute(server.app, options);
  addModelsRoute(server.app, engine);
  addHealthRoute(server.app, options);
  return server;
}

function addModelsRoute(app: HttpServer['app'], engine: DecoderEngine): void {
  const created = Math.floor(Date.now() / 1_000);
  app.get('/v1/models', () => ({
    object: 'list',
    data: [
      {
        id: engine.identity.name,
        object: 'model',
        created,
        owned_by: 'muser',
        context_window: engine.contextTokens,
      },
    ],
  }));
}

function addHealthRoute(app: HttpServer['app'], { engine, directory, samples, coordinatorState }: ApiOptions): void {
  app.get('/health', () => {
    const { active, max, kept } = engine.load();
    return {
      status: 'ok',
      model: engine.identity.name,
      producers: directory.all().map(({ entry }) => ({ nodeId: entry.nodeId, name: entry.name, state: entry.state })),
      coordinator: coordinatorState(),
      sequences: { active, max },
      kept,
      checkedTransfers: samples.counts,
    };
  });
}
