/** Settings of the producer in the environment: docs/CONFIG.md. */
const PREFIX = 'MUSER_PRODUCER_';
/** Of these the command line decides. */
const FLAGS = ['STATE_DIR', 'BACKEND', 'MODEL', 'HOST', 'PORT', 'EXIT_WITH_PARENT'].map((name) => `${PREFIX}${name}`);

/** What the operator has set for the producer; it goes before the plan of its memory. */
export function ownVariables(env: NodeJS.ProcessEnv): Record<string, string> {
  const own: Record<string, string> = {};
  for (const [name, value] of Object.entries(env)) {
    if (value !== undefined && name.startsWith(PREFIX) && !FLAGS.includes(name)) own[name] = value;
  }
  return own;
}
