/**
 * A figure in docs/LIMITS.md is a link to the file that has it, with the name of the constant as its title:
 * `[8 MiB](../packages/transport/src/limits.ts 'MAX_TRANSFER_BYTES_IN_FLIGHT')`.
 */
const FIGURE = /\[([^\]]+)\]\(\.\.\/([^\s)]+) ["'](\w+)["']\)/g;
/** A constant that caps a length, wherever it stands. */
const CAP = /(?:const|constexpr \w+) ((?:MAX_\w*|\w*_LIMIT_|k?Max\w*)(?:BYTES|CHARACTERS|LENGTH|Bytes)\w*) =/g;
const UNITS = [
  ['TiB', 2 ** 40],
  ['GiB', 2 ** 30],
  ['MiB', 2 ** 20],
  ['KiB', 2 ** 10],
];

/**
 * The page with every figure as the code has it, and what cannot be found out.
 *
 * @param {string} page
 * @param {(path: string) => string | null} read of a file of this repository; null when there is none
 * @returns {{ text: string, problems: string[] }}
 */
export function withFigures(page, read) {
  const problems = [];
  const text = page.replace(FIGURE, (link, shown, path, name) => {
    const value = valueOf(name, path, read);
    if (value !== null) return link.replace(`[${shown}]`, `[${figure(name, value)}]`);
    problems.push(`docs/LIMITS.md: there is no figure ${name} in ${path}`);
    return link;
  });
  return { text, problems };
}

/** @returns {string[]} caps of lengths in these files that the page does not name */
export function missingCaps(page, paths, read) {
  const named = new Set([...page.matchAll(FIGURE)].map(([, , path, name]) => `${path} ${name}`));
  return paths.flatMap((path) =>
    [...(read(path) ?? '').matchAll(CAP)]
      .filter(([, name]) => !named.has(`${path} ${name}`))
      .map(([, name]) => `docs/LIMITS.md does not name ${name} of ${path}`),
  );
}

function valueOf(name, path, read) {
  const source = read(path);
  if (source === null) return null;
  if (path.endsWith('.json')) return JSON.parse(source).limits?.[name] ?? null;
  const expression = new RegExp(`(?:const|constexpr \\w+) ${name} =([^;]+);`).exec(source)?.[1];
  return expression === undefined
    ? null
    : evaluated(expression, (other) => valueOf(other, path, read) ?? imported(other, read));
}

function imported(name, read) {
  const path = 'packages/protocol/src/limits.ts';
  return new RegExp(`const ${name} =`).test(read(path) ?? '') ? valueOf(name, path, read) : null;
}

/** Numbers, names of other constants, and arithmetic. null when it is anything else. */
function evaluated(expression, lookUp) {
  let known = true;
  const numbers = expression.replace(/(\d)[_](?=\d)/g, '$1').replace(/(\d)U?L*\b/g, '$1');
  const plain = numbers.replace(/[A-Za-z_]\w*/g, (name) => {
    const value = lookUp(name);
    known &&= value !== null;
    return String(value);
  });
  if (!known || !/^[\d\s+*/()<.-]+$/.test(plain)) return null;
  return Number(new Function(`return (${plain})`)());
}

function figure(name, value) {
  if (/PER_SECOND/.test(name)) return `${bytes(value)}/s`;
  if (/BYTES|Bytes/.test(name)) return bytes(value);
  if (/_MS$|Ms$/.test(name)) return value % 1000 === 0 ? `${value / 1000} s` : `${value} ms`;
  return /CHARACTERS|LENGTH/.test(name) ? `${grouped(value)} characters` : grouped(value);
}

function bytes(value) {
  const [unit, size] = UNITS.find(([, bytes]) => value >= bytes && value % bytes === 0) ?? ['bytes', 1];
  return `${grouped(value / size)} ${unit}`;
}

const grouped = (value) => value.toLocaleString('en-US');
