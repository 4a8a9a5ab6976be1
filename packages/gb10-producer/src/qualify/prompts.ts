/**
 * The fixed prompts of a qualification: a document with one fact in it and a question about that fact, made without chance,
 * so that two qualifications of the same pair compare the same tokens. Nobody's own text is used.
 */

/** Prompts by what they reach: less than a window, beyond one, several windows and several chunks. */
export type PromptKind = 'short' | 'beyond-window' | 'long';

export interface QualificationPrompt {
  readonly kind: PromptKind;
  readonly tokens: Uint32Array;
}

/** Window of a model that has none, for the lengths alone. */
const WINDOW_OF_NONE = 512;
/** Not a whole number, so that the prompt does not end where a window begins. */
const LONG_WINDOWS = 4.125;
const SENTENCES_PER_PARAGRAPH = 4;

const SUBJECTS =
  'The northern archive|A second engineer|The harbour office|Every printed catalogue|The weather station|Our oldest ledger|A travelling librarian|The repair workshop|The night train|Each visiting student|The mountain post|A quiet committee|The printing house'.split(
    '|',
  );
const VERBS =
  'describes|keeps a record of|sends a letter about|compares|repairs|has questions about|stores|measures|explains|copies|is waiting for'.split(
    '|',
  );
const OBJECTS =
  'the copper instruments|a list of ferries|the maps of the valley|seven wooden boxes|the water level|an early edition|the garden tools|the letters from March|two broken clocks|the names of the streets|a collection of seeds|the tables of distances|the new bridge|a box of photographs|the timetable|the old catalogue|the lanterns'.split(
    '|',
  );
const ENDINGS =
  'near the river|before the end of the week|in the second building|for the public|at the request of the council|without any delay|on the upper floor|after the summer|with great care|next to the entrance|in two languages|as it did last year|behind the station|once every month|for no stated reason|under the same roof|when the weather allows it|together with a drawing|at a low price'.split(
    '|',
  );

const FACTS: readonly { readonly sentence: string; readonly question: string }[] = [
  {
    sentence: 'The access code for Torvina is amber-falcon-42.',
    question: 'What is the access code for Torvina?',
  },
  { sentence: 'Maria Lopez lives in Lisbon.', question: 'Where does Maria Lopez live?' },
  { sentence: 'The budget meeting starts at 9:30.', question: 'When does the budget meeting start?' },
  { sentence: 'Server bramok listens on port 48211.', question: 'Which port does server bramok listen on?' },
  { sentence: 'Ticket 4711 is assigned to Olga Weber.', question: 'Who is ticket 4711 assigned to?' },
];

/**
 * @param tokenize the model's own, special tokens in the text taken for what they are
 * @param windowTokens 0 for a model without window layers
 */
export function qualificationPrompts(
  tokenize: (text: string) => Int32Array,
  windowTokens: number,
): readonly QualificationPrompt[] {
  const window = windowTokens === 0 ? WINDOW_OF_NONE : windowTokens;
  const lengths: [PromptKind, number][] = [
    ['short', Math.round(window / 4)],
    ['short', Math.round(window / 2)],
    ['beyond-window', Math.round((window * 4) / 3)],
    ['beyond-window', Math.round(window * 2.2)],
    ['long', Math.round(window * LONG_WINDOWS)],
  ];
  return lengths.map(([kind, tokens], index) => ({ kind, tokens: Uint32Array.from(prompt(tokenize, index, tokens)) }));
}

/** The shortest prompt of this form that has at least so many tokens. */
function prompt(tokenize: (text: string) => Int32Array, index: number, atLeast: number): Int32Array {
  const { sentence, question } = FACTS[index % FACTS.length] ?? { sentence: '', question: '' };
  const paragraphs: string[] = [];
  let tokens = tokenize(markup(sentence, question));
  while (tokens.length < atLeast) {
    paragraphs.push(paragraph(index * 1009 + paragraphs.length * SENTENCES_PER_PARAGRAPH));
    const middle = Math.floor(paragraphs.length / 2);
    const document = [...paragraphs.slice(0, middle), sentence, ...paragraphs.slice(middle)].join('\n\n');
    tokens = tokenize(markup(document, question));
  }
  return tokens;
}

/** As Muse Glimmer is asked; to a model that does not know these marks they are text like any other. */
function markup(document: string, question: string): string {
  return (
    '<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.<|eot|>' +
    `<|start|>user<|message|>${document}\n\n${question}<|eot|><|start|>assistant to=user<|message|>`
  );
}

/** The lists have lengths without a common factor, so that sentences repeat after tens of thousands only. */
function paragraph(first: number): string {
  const at = (words: readonly string[], index: number): string => words[index % words.length] ?? '';
  return Array.from({ length: SENTENCES_PER_PARAGRAPH }, (_, offset) => {
    const index = first + offset;
    return `${at(SUBJECTS, index * 5)} ${at(VERBS, index * 7)} ${at(OBJECTS, index * 3)} ${at(ENDINGS, index * 11)}.`;
  }).join(' ');
}
