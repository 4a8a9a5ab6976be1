import ts from 'typescript';

/** A comment line above a test that says what the test shows, such as `// promise: A closed port stays closed.` */
const TAG = /^(promise|fault): (.+)$/;

/**
 * @typedef {object} TaggedTest
 * @property {'promise' | 'fault'} kind
 * @property {string} text the sentence, or the key of the fault
 * @property {string} path
 * @property {number} line of the tag
 * @property {string} test the test's name after those of the groups around it
 */

/**
 * The tagged tests of one file; `path` tells in which language it is written. A problem is a tag that stands above no test.
 *
 * @returns {{ tests: TaggedTest[], problems: string[] }}
 */
export function taggedTests(path, text) {
  const language = languageOf(path);
  const words = text
    .split('\n')
    .map((line) => (line.trim().startsWith(language.mark) ? commentText(line, language) : null));
  const tagged = words.flatMap((comment, index) => (comment !== null && TAG.test(comment) ? [index] : []));
  if (tagged.length === 0) return { tests: [], problems: [] };

  const tests = language
    .tests(text, path)
    .flatMap(({ name, line }) => tagsAbove(words, line).map((tag) => ({ ...tag, path, test: name })));
  const above = new Set(tests.map((test) => test.line));
  const problems = tagged
    .filter((index) => !above.has(index + 1))
    .map((index) => `${path}:${index + 1}: stands directly above no test: ${words[index]}`);
  return { tests: tests.sort((a, b) => a.line - b.line), problems };
}

function languageOf(path) {
  if (path.endsWith('.py')) return { mark: '#', tests: pythonTests };
  return { mark: '//', tests: path.endsWith('.cpp') ? cppTests : scriptTests };
}

function commentText(line, { mark }) {
  return line.trim().slice(mark.length).trim();
}

/** The tags of the comment that ends directly above line `below` (counted from 0). A sentence ends with a full stop or the comment. */
function tagsAbove(words, below) {
  let first = below;
  while (first > 0 && words[first - 1] !== null) first -= 1;
  const tags = [];
  for (let index = first; index < below; index += 1) {
    const [, kind, text] = TAG.exec(words[index]) ?? [];
    const last = tags.at(-1);
    if (kind) tags.push({ kind, text, line: index + 1 });
    else if (last?.kind === 'promise' && !last.text.endsWith('.')) last.text += ` ${words[index]}`;
  }
  return tags.map((tag) => ({ ...tag, text: tag.text.replace(/\.$/, '') }));
}

/** Tests of Vitest and groups of them, each by its name after those of the groups around it. */
function scriptTests(text, path) {
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, false);
  const found = [];
  const visit = (node, around) => {
    const own = ts.isExpressionStatement(node) ? testName(node.expression) : null;
    const names = own === null ? around : [...around, own];
    if (own !== null) {
      found.push({ name: names.join(' › '), line: source.getLineAndCharacterOfPosition(node.getStart(source)).line });
    }
    ts.forEachChild(node, (child) => visit(child, names));
  };
  visit(source, []);
  return found;
}

/** The name in `it('name', …)`, `it.each(cases)('name', …)`, `test.skipIf(x)('name', …)` or `describe('name', …)`. */
function testName(node) {
  if (!ts.isCallExpression(node) || !['it', 'test', 'describe'].includes(calledWord(node.expression))) return null;
  const [name] = node.arguments;
  if (name && ts.isStringLiteralLike(name)) return name.text;
  // What stands in `${…}` is known only when the test runs.
  if (name && ts.isTemplateExpression(name))
    return [name.head, ...name.templateSpans.map((s) => s.literal)].map((part) => part.text).join('…');
  return null;
}

function calledWord(node) {
  if (ts.isIdentifier(node)) return node.text;
  return ts.isPropertyAccessExpression(node) || ts.isCallExpression(node) ? calledWord(node.expression) : '';
}

function pythonTests(text) {
  const lines = text.split('\n');
  return lines.flatMap((line, index) => {
    const [, name] = /^\s*(?:async )?(?:def|class) ([Tt]est\w*)/.exec(line) ?? [];
    return name ? [{ name, line: firstDecorator(lines, index) }] : [];
  });
}

/** Decorators stand between a comment and its function; one may take several lines. */
function firstDecorator(lines, line) {
  let first = line;
  for (let index = line - 1; index >= 0 && !/^\s*(#.*)?$/.test(lines[index]); index -= 1) {
    if (lines[index].trim().startsWith('@')) first = index;
  }
  return first;
}

function cppTests(text) {
  return text.split('\n').flatMap((line, index) => {
    const [, suite, name] = /^\s*(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)/.exec(line) ?? [];
    return suite ? [{ name: `${suite}.${name}`, line: index }] : [];
  });
}
