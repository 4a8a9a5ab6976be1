/**
 * What every process needs and that knows no domain: configuration, logging, lifecycle, command line, files, time, and
 * an HTTP server that only programs of this machine can reach.
 */
export { EXIT, ServiceError, describeError } from './errors.js';
export type { ServiceErrorCode } from './errors.js';
export { ConfigError, loadConfig } from './config/load.js';
export type { DeepReadonly, LoadConfigOptions } from './config/load.js';
export { fields } from './config/fields.js';
export { configTable } from './config/table.js';
export { LOG_LEVELS, createLogger, flushLogger } from './logging.js';
export type { LogLevel, Logger } from './logging.js';
export { printReady, runProcess } from './lifecycle.js';
export type { ProcessContext, RunProcessOptions, RunningService } from './lifecycle.js';
export { startParts } from './parts.js';
export type { Closer } from './parts.js';
export { runCommandLine } from './command-line.js';
export type { Command, CommandLine } from './command-line.js';
export { createHttpServer } from './http/server.js';
export type { ErrorReply, HttpServer, HttpServerOptions } from './http/server.js';
export { fileDigest } from './file-digest.js';
export {
  createFileOnce,
  ensurePrivateFolder,
  prepareResultFile,
  readPrivateFile,
  readSmallFile,
  writeFileAtomic,
} from './files.js';
export type { ResultKind } from './files.js';
export { openRegular, openRegularSync } from './regular-file.js';
export { readJsonObject } from './json-input.js';
export { LearnedRate } from './learned-rate.js';
export { lockFolder } from './folder-lock.js';
export type { FolderLock } from './folder-lock.js';
export { isProcessRunning } from './process-life.js';
export { systemClock } from './clock.js';
export type { Clock } from './clock.js';
