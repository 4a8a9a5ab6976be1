import { pino } from 'pino';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** A logger of one component. Hand it in; `logger.child({ part })` makes one for a part of it. */
export type Logger = pino.Logger;

/**
 * Properties whose values never reach the log, at the top of a line and one level below. It is a net under the rule
 * that secrets and prompt text are not handed to a logger in the first place.
 */
const SECRET_KEYS = [
  'authorization',
  'body',
  'content',
  'cookie',
  'headers',
  'messages',
  'password',
  'privateKey',
  'prompt',
  'proof',
  'secret',
  'seed',
  'text',
  'ticket',
  'tlsKeyPem',
  'token',
  'tokens',
];

/** Bytes of log lines that may wait for a slow reader; beyond them lines are dropped, because logging may not stop work. */
const MAX_WAITING_BYTES = 1 << 20;

/** JSON lines on standard error (or another file descriptor), one for each event, with `component` and `level`. */
export function createLogger(component: string, level: LogLevel, fileDescriptor = 2): Logger {
  // With a minLength of 0 a flush would report success before anything is written.
  const destination = pino.destination({ fd: fileDescriptor, sync: false, minLength: 1, maxLength: MAX_WAITING_BYTES });
  // The reader of the log may be gone (EPIPE). That is no reason to die.
  destination.on('error', () => undefined);
  return pino(
    {
      level,
      base: { pid: process.pid, component },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: SECRET_KEYS.flatMap((key) => [key, `*.${key}`]), censor: '[redacted]' },
    },
    destination,
  );
}

/** Waits until all lines are written, for `limitMs` at most: a reader that does not read must not keep a process alive. */
export async function flushLogger(logger: Logger, limitMs = 500): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, limitMs);
    logger.flush(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}
