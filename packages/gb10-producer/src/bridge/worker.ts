import { once, setMaxListeners } from 'node:events';

import { MuserError } from '@muser/protocol';
import type { Logger } from '@muser/service-kit';

import { orAborted, orLate } from '../abort.js';
import type { FrameConnection } from './connection.js';
import { groupLives, StuckGroupError } from './process-group.js';
import { RankLink } from './rank-link.js';
import type {
  ChunkHeader,
  ControlHello,
  DataHello,
  EndReason,
  FinishedHeader,
  MilestoneName,
  NodeFrames,
  ReadyHeader,
  RefusalCode,
  WorkerFrame,
} from './schema.js';
import { SocketServer } from './socket-server.js';
import { Watchdog } from './watchdog.js';
import { type ProcessEnd, WorkerProcess } from './worker-process.js';

/** How long a worker may take to close when it is asked to. */
const CLOSE_GRACE_MS = 3_000;
/** The end of a process explains a closed socket; it is told a moment later. */
const EXPLAIN_MS = 1_000;
/** In a start the worker hears late of an engine that has died, and nobody waits for the news. */
const EXPLAIN_START_MS = 10_000;

/**
 * Why a worker ended. closed: we asked for it. died: its process, its engine or a rank ended by itself. hung: no sign of life.
 * out-of-memory: it died and said so, or the kernel killed for want of memory. broken: it misused a socket.
 * refused: it said that it cannot serve. late: its start took longer than its limit. stuck: whatever the reason was, its
 * processes could not be killed.
 */
export type EndCause = 'closed' | 'died' | 'hung' | 'out-of-memory' | 'broken' | 'refused' | 'late' | 'stuck';

export interface WorkerEnd {
  readonly cause: EndCause;
  /** What whoever waited for the worker is told. */
  readonly error: MuserError;
  /** Another start cannot help. */
  readonly permanent: boolean;
}

/** What a worker tells while it runs. */
export interface WorkerListener {
  onMilestone(name: MilestoneName, milliseconds: number): void;
  onFinished(header: FinishedHeader): void;
  onChunk(rank: RankLink, header: ChunkHeader): void;
  onEnded(rank: RankLink, header: { readonly id: string; readonly reason: EndReason }): void;
}

export interface WorkerOptions {
  readonly python: string;
  readonly args: readonly string[];
  /** Sockets and secret are added. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** See WorkerProcessOptions. */
  readonly workerFile: string | null;
  /** From start to ready: loading, compiling, warming up. */
  readonly startLimitMs: number;
  /** Longest silence; three times as long without a step while there is work. */
  readonly hangLimitMs: number;
  readonly logger: Logger;
}

/** One run of the worker process, from its start to its end: it is never used again after that. */
export class VllmWorker {
  readonly id = Symbol('vLLM worker');
  readonly offer: ReadyHeader;
  /** In the order of their numbers. */
  readonly ranks: readonly RankLink[];
  readonly #lifetime: Lifetime;

  private constructor(offer: ReadyHeader, ranks: readonly RankLink[], lifetime: Lifetime) {
    this.offer = offer;
    this.ranks = ranks;
    this.#lifetime = lifetime;
  }

  /**
   * Resolves when the worker has passed its self-test and every rank is connected. After a failure nothing of it runs.
   * @throws MuserError why it did not start, or the signal's reason; StuckGroupError when something of it still runs
   */
  static async start(options: WorkerOptions, listener: WorkerListener, signal: AbortSignal): Promise<VllmWorker> {
    signal.throwIfAborted();
    const lifetime = new Lifetime(options, listener);
    try {
      await lifetime.begin();
      const limit = options.startLimitMs;
      const late = (): MuserError => {
        const error = new MuserError('DEADLINE_EXCEEDED', `the vLLM worker was not ready within ${limit} ms`);
        lifetime.end({ cause: 'late', error, permanent: false });
        return error;
      };
      const { offer, ranks } = await orLate(orAborted(lifetime.ready, signal), limit, late);
      return new VllmWorker(offer, ranks, lifetime);
    } catch (error) {
      await lifetime.close();
      throw error;
    }
  }

  /** Aborts, with the MuserError that tells why, as soon as the worker cannot be used any more. */
  get failed(): AbortSignal {
    return this.#lifetime.failed;
  }

  /** Resolves (never rejects) when nothing of the worker is left, so that its memory is free, or when it is stuck. */
  get ended(): Promise<WorkerEnd> {
    return this.#lifetime.ended;
  }

  /** The process that we started first, then those of the ranks. */
  get pids(): readonly number[] {
    return [...new Set([this.#lifetime.pid, ...this.ranks.map((rank) => rank.pid)])];
  }

  /** Memory that the worker's machine (or GPU) had left at the last heartbeat. */
  get freeMemoryBytes(): number {
    return this.#lifetime.freeMemoryBytes;
  }

  prefill(header: NodeFrames['prefill'], tokens: Uint32Array): void {
    const payload = Buffer.alloc(tokens.length * 4);
    for (const [index, token] of tokens.entries()) payload.writeUInt32LE(token, index * 4);
    this.#lifetime.send('prefill', header, payload);
  }

  /** Stops compute, and gives up every row. */
  abort(id: string): void {
    this.#lifetime.send('abort', { id });
    this.done(id);
  }

  /** Every row of it that is wanted has been read. */
  done(id: string): void {
    for (const rank of this.ranks) rank.done(id);
  }

  release(id: string, index: number): void {
    for (const rank of this.ranks) rank.release(id, index);
  }

  /** It hangs in a way that its heartbeat does not show: everything of it is ended. */
  giveUp(symptom: string): void {
    this.#lifetime.endHung(symptom);
  }

  /**
   * Asks it to end, ends it when it does not, and waits until nothing of it is left.
   * @throws StuckGroupError when it cannot be killed
   */
  close(): Promise<void> {
    return this.#lifetime.close();
  }
}

interface Ready {
  readonly offer: ReadyHeader;
  readonly ranks: RankLink[];
}

/** Process, sockets and watchdog of one worker, and which of them says first that it is over. */
class Lifetime {
  readonly ready: Promise<Ready>;
  readonly ended: Promise<WorkerEnd>;
  freeMemoryBytes = Number.MAX_SAFE_INTEGER;
  readonly #options: WorkerOptions;
  readonly #listener: WorkerListener;
  readonly #ranks = new Map<number, RankLink>();
  readonly #failed = new AbortController();
  readonly #watchdog: Watchdog;
  #server: SocketServer | null = null;
  #process: WorkerProcess | null = null;
  #control: FrameConnection | null = null;
  #offer: ReadyHeader | null = null;
  /** A link has closed; why is being found out. */
  #isCut = false;
  #end: WorkerEnd | null = null;
  /** null once it is ready. */
  #isReady: ((ready: Ready) => void) | null = null;
  #hasEnded: (end: WorkerEnd) => void = () => {};

  constructor(options: WorkerOptions, listener: WorkerListener) {
    this.#options = options;
    this.#listener = listener;
    // Every prefill listens.
    setMaxListeners(0, this.failed);
    const readyOrNot = new Promise<Ready>((resolve) => (this.#isReady = resolve));
    this.ready = orAborted(readyOrNot, this.failed);
    this.ready.catch(() => {});
    this.ended = new Promise((resolve) => (this.#hasEnded = resolve));
    this.#watchdog = new Watchdog(options.hangLimitMs, (symptom) => this.endHung(symptom));
  }

  get failed(): AbortSignal {
    return this.#failed.signal;
  }

  get pid(): number {
    return this.#process?.pid ?? 0;
  }

  async begin(): Promise<void> {
    const { python, args, settings, workerFile, logger } = this.#options;
    const events = {
      onControl: (connection: FrameConnection, hello: ControlHello) => this.#admitControl(connection, hello),
      onData: (connection: FrameConnection, hello: DataHello) => this.#admitRank(connection, hello),
    };
    const server = await SocketServer.listen(events, logger);
    this.#server = server;
    const { controlSocket, dataSocket, secret } = server;
    this.#process = await WorkerProcess.start({
      python,
      args,
      settings: { ...settings, controlSocket, dataSocket, secret },
      workerFile,
      logger,
    });
    void this.#process.ended.then((end) => this.#explainDeath(end));
  }

  send<K extends keyof NodeFrames>(kind: K, header: NodeFrames[K], payload?: Uint8Array): void {
    this.#control?.send(kind, header, payload);
  }

  async close(): Promise<void> {
    if (this.#end === null) this.send('shutdown', {});
    this.end({ cause: 'closed', error: new MuserError('CANCELLED', 'the vLLM worker is closed'), permanent: false });
    const { error } = await this.ended;
    if (error instanceof StuckGroupError && groupLives(error.leader)) throw error;
  }

  endHung(symptom: string): void {
    const error = new MuserError('ENGINE_FAILED', `the vLLM worker hangs: ${symptom}`);
    this.end({ cause: 'hung', error, permanent: false });
  }

  /** The first reason counts. Whoever waits hears it at once; `ended` follows when all is gone. */
  end(end: WorkerEnd): void {
    if (this.#end !== null) return;
    this.#end = end;
    this.#watchdog.stop();
    this.#failed.abort(end.error);
    for (const rank of this.#ranks.values()) rank.fail(end.error);
    void this.#cleanUp(end);
  }

  /** Whatever fails here, `ended` resolves: whoever waits for it would wait for ever. */
  async #cleanUp(end: WorkerEnd): Promise<void> {
    const { logger } = this.#options;
    const stopping = end.cause === 'closed' ? this.#process?.stop(CLOSE_GRACE_MS) : this.#process?.kill();
    const [stopped] = await Promise.allSettled([stopping]);
    const [closed] = await Promise.allSettled([this.#server?.close()]);
    if (closed.status === 'rejected')
      logger.warn({ err: closed.reason as unknown }, "the bridge's folder is left behind");
    if (stopped.status === 'fulfilled') return this.#hasEnded(end);
    const reason: unknown = stopped.reason;
    const error = reason instanceof StuckGroupError ? reason : new StuckGroupError(this.pid, reason);
    logger.error({ workerPid: this.pid, reason: error.message }, 'the vLLM worker cannot be killed');
    this.#hasEnded({ cause: 'stuck', error, permanent: true });
  }

  #explainDeath({ reason, outOfMemory, lastLine }: ProcessEnd): void {
    if (this.#end === null) this.#options.logger.error({ lastLine }, `the vLLM worker ${reason}`);
    this.end(
      outOfMemory
        ? {
            cause: 'out-of-memory',
            error: new MuserError('OUT_OF_MEMORY', `the vLLM worker ran out of memory and ${reason}`),
            permanent: false,
          }
        : { cause: 'died', error: new MuserError('ENGINE_FAILED', `the vLLM worker ${reason}`), permanent: false },
    );
  }

  /** A socket that the worker closes mostly means that its process has ended, which says more. */
  async #explainClose(link: string, connection: FrameConnection): Promise<void> {
    const error = await connection.closed;
    if (this.#end !== null) return;
    this.#isCut = true;
    const message = error === null ? `closed its ${link} link` : `broke its ${link} link: ${error.message}`;
    if (connection.endedByPeer && this.#process !== null) {
      const limitMs = this.#isReady === null ? EXPLAIN_MS : EXPLAIN_START_MS;
      const explained = Promise.race([this.#process.ended, once(this.failed, 'abort')]);
      const isExplained = await orLate(explained, limitMs, () => new Error('late')).then(
        () => true,
        () => false,
      );
      if (isExplained) return;
      const last = await this.#process.lastWords(message, true);
      if (last.outOfMemory) return this.#explainDeath(last);
    }
    this.end({
      // A rank or an engine that has died closes its link, and the worker may hear of it late.
      cause: connection.endedByPeer ? 'died' : 'broken',
      error: new MuserError('ENGINE_FAILED', `the vLLM worker ${message}`, { cause: error }),
      permanent: false,
    });
  }

  #admitControl(connection: FrameConnection, hello: ControlHello): void {
    if (this.#control !== null) throw new MuserError('ORDER_VIOLATION', 'a second control link');
    this.#control = connection;
    this.#options.logger.debug({ workerPid: hello.pid, workerVersion: hello.version }, 'the vLLM worker is connected');
    connection.handTo((frame) => this.#onControl(frame));
    void this.#explainClose('control', connection);
  }

  #admitRank(connection: FrameConnection, hello: DataHello): void {
    if (this.#ranks.has(hello.rank)) throw new MuserError('ORDER_VIOLATION', `rank ${hello.rank} came twice`);
    const rank = new RankLink(connection, hello);
    this.#ranks.set(hello.rank, rank);
    connection.handTo((frame) => this.#onData(rank, frame));
    void this.#explainClose(`data (rank ${hello.rank})`, connection);
    this.#tellReady();
  }

  #onControl(frame: WorkerFrame): void {
    this.#watchdog.alive();
    switch (frame.kind) {
      case 'milestone':
        return this.#listener.onMilestone(frame.header.name, frame.header.ms);
      case 'ready':
        if (this.#offer !== null) throw new MuserError('ORDER_VIOLATION', 'ready came twice');
        this.#offer = frame.header;
        return this.#tellReady();
      case 'heartbeat':
        this.freeMemoryBytes = frame.header.freeMemoryBytes;
        return this.#watchdog.steps(frame.header.steps, frame.header.runningRequests);
      case 'finished':
        return this.#listener.onFinished(frame.header);
      case 'refused':
        return this.#refuse(frame.header);
      default:
        throw new MuserError('ORDER_VIOLATION', `${frame.kind} on the control link`);
    }
  }

  #onData(rank: RankLink, frame: WorkerFrame): void {
    switch (frame.kind) {
      case 'milestone':
        return this.#listener.onMilestone(frame.header.name, frame.header.ms);
      case 'chunk':
        return this.#listener.onChunk(rank, frame.header);
      case 'rows':
      case 'failed':
        return rank.answer(frame);
      case 'ended':
        return this.#listener.onEnded(rank, frame.header);
      case 'refused':
        return this.#refuse(frame.header);
      default:
        throw new MuserError('ORDER_VIOLATION', `${frame.kind} on the data link`);
    }
  }

  #refuse({ code, message }: { code: RefusalCode; message: string }): void {
    if (code === 'ENGINE_FAILED' || code === 'OUT_OF_MEMORY') return void this.#explainFailure(code, message);
    const { ours, permanent } = REFUSALS[code];
    this.end({ cause: 'refused', error: new MuserError(ours, `vLLM: ${message}`), permanent });
  }

  /** The engine is a process of its own: why it ended is in the log, not in what the worker has heard. */
  async #explainFailure(code: 'ENGINE_FAILED' | 'OUT_OF_MEMORY', message: string): Promise<void> {
    const last = await this.#process?.lastWords(`said: ${message}`, true);
    if (last !== undefined) this.#explainDeath({ ...last, outOfMemory: last.outOfMemory || code === 'OUT_OF_MEMORY' });
  }

  #tellReady(): void {
    const offer = this.#offer;
    if (offer === null || this.#isCut || this.#ranks.size < offer.ranks) return;
    const ranks = [...this.#ranks.values()].sort((a, b) => a.rank - b.rank);
    // Only from here on: loading and compiling have the start's own limit.
    this.#watchdog.start();
    this.#process?.guardLog();
    this.#isReady?.({ offer, ranks });
    this.#isReady = null;
  }
}

const REFUSALS = {
  SETTINGS_INVALID: { ours: 'CONFIG_INVALID', permanent: true },
  MODEL_UNSUPPORTED: { ours: 'MODEL_UNSUPPORTED', permanent: true },
  LAYOUT_UNKNOWN: { ours: 'MODEL_UNSUPPORTED', permanent: true },
  SELF_TEST_FAILED: { ours: 'ENGINE_FAILED', permanent: false },
} as const satisfies Record<Exclude<RefusalCode, 'ENGINE_FAILED' | 'OUT_OF_MEMORY'>, object>;
