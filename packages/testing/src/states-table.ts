/** One cell of a table of states: what happens, the state before it, and the state or code afterwards. */
export interface StatesCell {
  readonly event: string;
  readonly state: string;
  readonly after: string;
}

/** The cells of the table between `<!-- states: NAME -->` and `<!-- states: end -->`; a dash is no cell. */
export function statesTable(markdown: string, name: string): StatesCell[] {
  const [, text = ''] = markdown.split(`<!-- states: ${name} -->`);
  const [table = ''] = text.split('<!-- states: end -->');
  const rows = table
    .trim()
    .split('\n')
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim().replaceAll('`', '')),
    );
  const [head = [], , ...body] = rows;
  return body.flatMap(([event = '', ...cells]) =>
    cells.flatMap((after, index) => (after === '-' ? [] : [{ event, state: head[index + 1] ?? '', after }])),
  );
}
