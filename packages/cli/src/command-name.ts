const COMMANDS = 'ask|demo|dev|doctor|models|node|producer';
const MENTION = new RegExp(`(?<=^|[\\s\`])muser(?= (?:${COMMANDS})\\b)`, 'gm');

/**
 * A text for people in which commands are named the way this one was started, so that they can be copied: `./muser` of a
 * checkout, which is in no PATH, tells in MUSER_COMMAND what was typed.
 */
export function asTyped(text: string, env: NodeJS.ProcessEnv = process.env): string {
  const typed = env['MUSER_COMMAND'] ?? '';
  if (typed === '') return text;
  const quoted = /^[\w./~+@%:,-]+$/.test(typed) ? typed : `'${typed.replaceAll("'", `'\\''`)}'`;
  return text.replace(MENTION, () => quoted);
}
