import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { writeFileAtomic } from '@muser/service-kit';
import { z } from 'zod';
import { CliError, EXIT } from '../exit.js';
import { formatDuration } from '../format.js';
import { listenForInterrupts } from '../signals.js';
import { createStateFolders, stateLayout, stateRoot } from '../state.js';
import { ENTRIES } from '../system/paths.js';
import { ManagedProcess } from '../system/process.js';
import { describeMilestone, prepareEngine, type EngineName } from '../system/producer-engine.js';
import { StatusOutput } from '../terminal.js';
import { ownVariables } from './own-variables.js';

/** Longer than the producer's own time for draining. */
const STOP_LIMIT_MS = 35_000;

const readySchema = z.object({
  ready: z.literal(true),
  address: z.string(),
  nodeId: z.string(),
  backend: z.string(),
  model: z.string(),
  paused: z.boolean(),
});

export interface RunProducerOptions {
  engine: EngineName;
  /** null: the small model of the repository. */
  model: string | null;
  /** Longest prompt; null: as long as the model, or the producer, allows. */
  promptTokens: number | null;
  /** Prefills at once. */
  requests: number;
  state: string | undefined;
  host: string;
  port: number;
  json: boolean;
}

/** Runs a producer that is enrolled already, until Ctrl-C. Returns the exit code. */
export async function runProducer(options: RunProducerOptions): Promise<number> {
  const startedAt = performance.now();
  const output = new StatusOutput(process.stderr, { quiet: false, env: process.env });
  const tell = (text: string): void => output.line(`[${formatDuration(performance.now() - startedAt)}] ${text}`);
  const layout = stateLayout(stateRoot(options.state, process.env));
  await createStateFolders(layout);
  await checkEnrolled(layout.producer);
  let producer: ManagedProcess<z.infer<typeof readySchema>> | null = null;
  const interrupts = listenForInterrupts((exitCode) => {
    producer?.kill();
    process.exit(exitCode);
  });
  try {
    const engine = await prepareEngine(
      { name: options.engine, model: options.model, alone: options },
      interrupts.signal,
    );
    const configFile = join(layout.producer, 'config.json');
    const { host, port } = options;
    const config = {
      stateDir: layout.producer,
      exitWithParent: true,
      backend: engine.name,
      model: engine.model,
      host,
      port,
    };
    await writeFileAtomic(configFile, `${JSON.stringify(config, null, 2)}\n`);
    tell(`starting ${engine.name} with ${engine.model}`);
    producer = await ManagedProcess.start(
      {
        name: 'producer',
        entry: ENTRIES.producer,
        args: ['run', '--config', configFile],
        logFile: join(layout.logs, 'producer.log'),
        ready: readySchema,
        onMilestone: (milestone) => tell(describeMilestone(milestone)),
        environment: { ...engine.environment, ...ownVariables(process.env) },
        ...(engine.readyLimitMs === null ? {} : { readyLimitMs: engine.readyLimitMs }),
      },
      interrupts.signal,
    );
    if (options.json) process.stdout.write(`${JSON.stringify({ ...producer.ready, pid: producer.pid })}\n`);
    const state = producer.ready.paused ? 'paused (`muser node resume` loads its model)' : 'ready';
    tell(`${state}: ${producer.ready.model} at ${producer.ready.address}; Ctrl-C stops it`);
    return await untilItEnds(producer, interrupts.signal, tell, layout.logs);
  } finally {
    interrupts.dispose();
  }
}

async function untilItEnds(
  producer: ManagedProcess<unknown>,
  stop: AbortSignal,
  tell: (text: string) => void,
  logs: string,
): Promise<number> {
  const stopped = new Promise<null>((resolve) => {
    if (stop.aborted) resolve(null);
    stop.addEventListener('abort', () => resolve(null), { once: true });
  });
  const end = await Promise.race([producer.exited, stopped]);
  if (end !== null) {
    tell(`the producer ${end} (log: ${logs}/producer.log)`);
    return EXIT.failed;
  }
  tell('stopping the producer: what runs may finish');
  await producer.stop(STOP_LIMIT_MS);
  tell('stopped');
  return EXIT.ok;
}

async function checkEnrolled(stateDir: string): Promise<void> {
  await access(join(stateDir, 'identity')).catch((cause: unknown) => {
    throw new CliError(EXIT.failed, 'NOT_FOUND', `this producer is not enrolled: ${stateDir} has no identity`, {
      advice: 'Enroll it with a coordinator (docs/OPERATIONS.md), or try everything on this machine with `muser dev`.',
      cause,
    });
  });
}
