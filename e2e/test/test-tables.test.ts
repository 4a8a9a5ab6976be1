import { describe, expect, it } from 'vitest';

interface TaggedTest {
  kind: 'promise' | 'fault';
  text: string;
  path: string;
  line: number;
  test: string;
}

interface Page {
  text: string;
  problems: string[];
}

const script = async (name: string): Promise<unknown> =>
  import(new URL(`../../scripts/lib/${name}`, import.meta.url).href);
const { taggedTests } = (await script('tagged-tests.mjs')) as {
  taggedTests: (path: string, text: string) => { tests: TaggedTest[]; problems: string[] };
};
const { promisesPage, faultsPage } = (await script('test-tables.mjs')) as Record<
  'promisesPage' | 'faultsPage',
  (page: string, tests: TaggedTest[]) => Page
>;

// Put together here, so that this file has no tags of its own.
const tag = (kind: string, text: string, mark = '//'): string => `${mark} ${kind}: ${text}`;
const names = (path: string, lines: string[]): [string, string][] =>
  taggedTests(path, lines.join('\n')).tests.map(({ text, test }) => [text, test]);

describe('comments above tests', () => {
  it('name the test below with its groups, in each of its forms', () => {
    expect(
      names('a.test.ts', [
        "describe('a door', () => {",
        `  ${tag('promise', 'It stays closed.')}`,
        '  it(`stays ${how} closed`, () => undefined);',
        `  ${tag('promise', 'It opens')}`,
        '  // for its owner. Not for others.',
        `  ${tag('fault', 'stuck-door')}`,
        '  it.skipIf(cold).each([',
        '    1,',
        "  ])('opens %i', () => undefined);",
        '});',
      ]),
    ).toEqual([
      ['It stays closed', 'a door › stays … closed'],
      ['It opens for its owner. Not for others', 'a door › opens %i'],
      ['stuck-door', 'a door › opens %i'],
    ]);
  });

  it('are read in Python and in C++', () => {
    const python = [
      tag('promise', 'A.', '#'),
      '@pytest.mark.parametrize(',
      '    "x", [1]',
      ')',
      'def test_a(x):',
      '    pass',
    ];
    expect(names('tests/test_a.py', python)).toEqual([['A', 'test_a']]);
    expect(names('test/a_test.cpp', [tag('fault', 'b'), 'TEST_F(Door, Opens) {', '}'])).toEqual([['b', 'Door.Opens']]);
  });

  it.each([
    ['at the end of a file', [tag('promise', 'A.')]],
    ['above something else', [tag('promise', 'A.'), 'const a = 1;', "it('works', () => undefined);"]],
    ['apart from its test', [tag('promise', 'A.'), '', "it('works', () => undefined);"]],
    ['above a call that is no test', [tag('promise', 'A.'), "say('works', () => undefined);"]],
  ])('are a problem %s', (_, lines) => {
    const { tests, problems } = taggedTests('a.test.ts', lines.join('\n'));
    expect(tests).toEqual([]);
    expect(problems).toEqual([expect.stringContaining('a.test.ts:1: stands directly above no test')]);
  });
});

const made = (kind: 'promise' | 'fault', text: string, path = 'packages/transport/test/a.test.ts'): TaggedTest => ({
  kind,
  text,
  path,
  line: 1,
  test: 'a | b',
});

describe('docs/PROMISES.md', () => {
  const page = '<!-- promises: generated, do not edit -->\nold\n<!-- promises: end -->\n';

  it('has a row for each promise under its subject', () => {
    const { text, problems } = promisesPage(page, [made('promise', 'One'), made('fault', 'two')]);
    expect(problems).toEqual([]);
    expect(text).toContain('## Links\n\n| Promise | Test | File |');
    expect(text).toContain('| One | a \\| b | [a.test.ts](../packages/transport/test/a.test.ts) |');
    expect(text).not.toMatch(/old|two/);
  });

  it('has no promise twice', () => {
    expect(promisesPage(page, [made('promise', 'One'), made('promise', 'one')]).problems).toHaveLength(1);
  });
});

describe('docs/FAULTS.md', () => {
  const row = (key: string, last: string): string => `| \`${key}\` | what | how | ${last} |`;

  it('names the tests of each fault, or says why there is none', () => {
    const { text, problems } = faultsPage([row('one', 'old'), row('two', 'Not shown: needs a GB10')].join('\n'), [
      made('fault', 'one'),
    ]);
    expect(problems).toEqual([]);
    expect(text.split('\n')).toEqual([
      row('one', 'a \\| b ([a.test.ts](../packages/transport/test/a.test.ts))'),
      row('two', 'Not shown: needs a GB10'),
    ]);
  });

  it.each([
    ['a fault without a test', row('one', ''), []],
    ['a test of an unknown fault', row('one', 'Not shown: why'), [made('fault', 'two')]],
    ['a fault with two rows', `${row('one', '')}\n${row('one', '')}`, [made('fault', 'one')]],
  ])('is not complete with %s', (_, page, tests) => {
    expect(faultsPage(page, tests).problems).toHaveLength(1);
  });
});
