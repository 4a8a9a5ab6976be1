/** @typedef {import('./tagged-tests.mjs').TaggedTest} TaggedTest */

/** Subjects of docs/PROMISES.md, in its order. A promise belongs to the first whose pattern its test's file has. */
const SUBJECTS = [
  ['Secrets', /logging|log-lines|own-variables|secret/],
  [
    'Keys and enrollment',
    /identity|keys|vectors|ticket|coordinator\/test\/(ca|placement)|enroll|revo|rotat|\/node\.test/,
  ],
  ['Memory and limits', /budget|back-pressure|memory|scarce|slow-link|silence|limits|caps|stream\.test|leak|disk/],
  ['Faults and fallback', /fault|failure|fallback|network|stuck|worker|recovery|soak|placement|cancel|drain|resume/],
  ['Links', /transport\/|service-kit\/test\/http|operator-api/],
  ['Hand-off', /./],
];
const ORDER = ['Links', 'Keys and enrollment', 'Hand-off', 'Memory and limits', 'Faults and fallback', 'Secrets'];

/**
 * docs/PROMISES.md with its tables made anew.
 *
 * @param {string} page
 * @param {TaggedTest[]} tests
 */
export function promisesPage(page, tests) {
  const promises = tests.filter((test) => test.kind === 'promise');
  const tables = ORDER.map((subject) => {
    const rows = promises
      .filter((test) => subjectOf(test.path) === subject)
      .map((test) => [cell(test.text), cell(test.test), fileLink(test.path)]);
    return rows.length === 0 ? '' : `## ${subject}\n\n${table(['Promise', 'Test', 'File'], rows)}`;
  });
  return { text: betweenMarks(page, 'promises', tables.filter(Boolean).join('\n')), problems: twice(promises) };
}

function subjectOf(path) {
  return SUBJECTS.find(([, pattern]) => pattern.test(path))[0];
}

function twice(promises) {
  const first = new Map();
  return promises.flatMap((test) => {
    const key = test.text.toLowerCase();
    const other = first.get(key);
    first.set(key, test);
    return other ? [`${test.path}:${test.line}: promised already in ${other.path}:${other.line}: ${test.text}`] : [];
  });
}

/** A row of docs/FAULTS.md: what is written by hand, then the tests. */
const FAULT_ROW = /^\| `([a-z0-9-]+)` \|(.*)\|([^|]*)\|$/;
const NOT_SHOWN = /^Not shown: ./;

/**
 * docs/FAULTS.md with its last column made anew. A fault without a test keeps what its last column says: why it is not shown.
 *
 * @param {string} page
 * @param {TaggedTest[]} tests
 */
export function faultsPage(page, tests) {
  const faults = tests.filter((test) => test.kind === 'fault');
  const keys = new Set();
  const problems = [];
  const lines = page.split('\n').map((line) => {
    const [, key, written, last = ''] = FAULT_ROW.exec(line) ?? [];
    if (!key) return line;
    if (keys.has(key)) problems.push(`docs/FAULTS.md has two rows for ${key}`);
    keys.add(key);
    const links = faults
      .filter((test) => test.text === key)
      .map((test) => `${cell(test.test)} (${fileLink(test.path)})`);
    if (links.length === 0 && !NOT_SHOWN.test(last.trim()))
      problems.push(`docs/FAULTS.md: no test has "fault: ${key}" above it`);
    return links.length === 0 ? line : `| \`${key}\` |${written}| ${links.join('<br>')} |`;
  });
  for (const test of faults) {
    if (!keys.has(test.text)) problems.push(`${test.path}:${test.line}: docs/FAULTS.md has no row for ${test.text}`);
  }
  return { text: lines.join('\n'), problems };
}

function fileLink(path) {
  return `[${path.split('/').at(-1)}](../${path})`;
}

/** Text as it may stand in a cell of a table. */
function cell(text) {
  return text.replace(/[|<[\]]/g, '\\$&').replaceAll('\n', ' ');
}

function table(head, rows) {
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |\n`).join('');
}

function betweenMarks(page, name, content) {
  const [begin, end] = [`<!-- ${name}: generated, do not edit -->`, `<!-- ${name}: end -->`];
  const [from, to] = [page.indexOf(begin), page.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`the page has no marks for ${name}`);
  return `${page.slice(0, from + begin.length)}\n\n${content}\n${page.slice(to)}`;
}
