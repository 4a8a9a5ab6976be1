// What the fault matrix consists of; running it takes minutes: npm run test:faults.
import { describe, expect, it } from 'vitest';
import { LINK_FAULTS, outcomeText, PHASES } from '../faults/cells.js';
import { afterLinkFault } from '../faults/expectations.js';
import { allCells, randomCells } from '../faults/matrix.js';
import { parseOptions, UsageError } from '../faults/options.js';
import { toMarkdown, totals, type Result } from '../faults/report.js';

describe('the fault matrix', () => {
  const cells = allCells();

  it('has at least 150 cells, each with a name of its own and an end that is allowed', () => {
    expect(cells.length).toBeGreaterThanOrEqual(150);
    expect(new Set(cells.map(({ id }) => id)).size).toBe(cells.length);
    for (const { id, expect: allowed } of cells) expect(allowed.length, id).toBeGreaterThan(0);
  });

  it('breaks the link of a transfer in every way in every phase, on both backends', () => {
    const ids = new Set(cells.map(({ id }) => id));
    const phases = PHASES.filter((phase) => phase !== 'before');
    for (const fault of LINK_FAULTS) {
      for (const phase of phases) expect(ids).toContain(`llama/decoder - producer/${fault}/${phase}`);
      expect([...ids].some((id) => id.startsWith(`vllm/decoder - producer/${fault}/`))).toBe(true);
    }
  });

  it('allows few ends', () => {
    const open = cells.filter(({ expect: allowed }) => allowed.length > 2);
    // How often a link that stays down is tried depends on how fast this machine prefills.
    expect(open.filter(({ happening: { fault } }) => fault !== 'link down' && fault !== 'SIGKILL')).toEqual([]);
    const transfersEnd = afterLinkFault('cut', 'middle chunk').map(outcomeText);
    expect(transfersEnd).toEqual(['remote after PEER_UNREACHABLE', 'resumed after PEER_UNREACHABLE']);
  });

  it('draws the same random cells for the same seed', () => {
    expect(randomCells('llama', 20, 7)).toEqual(randomCells('llama', 20, 7));
    expect(randomCells('llama', 20, 7)).not.toEqual(randomCells('llama', 20, 8));
  });

  it('shows failures in its table and in its last line', () => {
    const [first, second] = cells;
    if (first === undefined || second === undefined) throw new Error('no cells');
    const passed: Result = {
      cell: first,
      verdict: 'passed',
      outcome: { way: 'remote', failures: [] },
      reason: null,
      tries: 1,
      seconds: 1,
    };
    const failed: Result = { cell: second, verdict: 'failed', outcome: null, reason: 'wrong', tries: 2, seconds: 1 };
    const run = { seed: 1, seconds: 2, results: [passed, failed] };
    expect(toMarkdown(run)).toMatch(/\| remote +\| \*\*FAILED\*\* +\|/);
    expect(totals(run)).toBe('1 passed, 1 failed');
  });
});

describe('its options', () => {
  it('take filters, a backend, and numbers in their ranges', () => {
    const args = [
      '--only',
      'cut',
      '--only',
      'reset',
      '--backend',
      'llama',
      '--random',
      '5',
      '--seed',
      '3',
      '--lanes',
      '1',
    ];
    const expected = { only: ['cut', 'reset'], backends: ['llama'], random: 5, seed: 3, lanes: 1, json: false };
    expect(parseOptions(args)).toEqual(expected);
    expect(parseOptions(['--help'])).toBeNull();
  });

  it.each([['--backend', 'other'], ['--random', '-1'], ['--lanes', '0'], ['--seed', 'x'], ['--what'], ['word']])(
    'refuse %s %s',
    (...args) => {
      expect(() => parseOptions(args.filter((arg) => arg !== undefined))).toThrow(UsageError);
    },
  );
});
