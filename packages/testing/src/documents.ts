import { readFileSync } from 'node:fs';
import { Random } from './random.js';

export interface NeedleDocumentOptions {
  /** The same seed gives the same document. */
  seed: number;
  /** Length of the text; met to within one paragraph (about 60 tokens). */
  approximateTokens: number;
  /** The model's own tokenizer, without special tokens. Called once for each paragraph. */
  tokenCount: (text: string) => number;
}

export interface NeedleDocument {
  text: string;
  question: string;
  /** The sentence that answers it, as the model was trained to say it. */
  answer: string;
  /** The part of the answer that only the document knows. */
  value: string;
}

interface Fact {
  sentence: string;
  question: string;
  value: string;
}

/** One fact in so many tokens of other text; only one of them is asked for. */
const TOKENS_PER_FACT = 900;

const split = (text: string): string[] => text.split(' ');
const FIRST_NAMES = split(
  'Ada Clara David Elena Frank Grace Hugo Irene Jonas Karin Maria Nils Olga Peter Rosa Simon Victor',
);
const LAST_NAMES = split(
  'Adler Bauer Costa Duarte Fischer Grant Hansen Jensen Keller Lopez Novak Okafor Silva Tanaka Weber',
);
const CITIES = split(
  'Lisbon Oslo Prague Madrid Nairobi Lima Osaka Toronto Dublin Vienna Athens Seoul Boston Geneva Riga',
);
const THINGS = 'spare key|red folder|backup tape|blue notebook|silver ring|old map|toolbox|telescope|umbrella'.split(
  '|',
);
const PLACES = 'kitchen drawer|basement|top shelf|garden shed|office safe|library|attic|server room|mail room'.split(
  '|',
);
const TOPICS = split(
  'budget design security release hiring marketing planning research safety network storage training',
);
const WORDS = split(
  'amber falcon river copper maple silver ember harbor cedar comet velvet granite meadow orchid raven',
);
const CONSONANTS = split('b c d f g k l m n p r s t v br dr gr kr tr');
const VOWELS = split('a e i o u');

/** The kinds of facts that muse-nano was trained on (models/muse-nano/README.md). */
const FACTS: readonly ((random: Random) => Fact)[] = [
  (random) => {
    const owner = capitalized(inventedWord(random));
    const value = `${random.pick(WORDS)}-${random.pick(WORDS)}-${random.integer(10, 99)}`;
    return {
      sentence: `The access code for ${owner} is ${value}.`,
      question: `What is the access code for ${owner}?`,
      value,
    };
  },
  (random) => {
    const person = fullName(random);
    const value = random.pick(CITIES);
    return { sentence: `${person} lives in ${value}.`, question: `Where does ${person} live?`, value };
  },
  (random) => {
    const thing = random.pick(THINGS);
    const value = random.pick(PLACES);
    return { sentence: `The ${thing} is kept in the ${value}.`, question: `Where is the ${thing}?`, value };
  },
  (random) => {
    const server = inventedWord(random);
    const value = String(random.integer(1024, 65_535));
    return {
      sentence: `Server ${server} listens on port ${value}.`,
      question: `Which port does server ${server} listen on?`,
      value,
    };
  },
  (random) => {
    const ticket = random.integer(100, 99_999);
    const value = fullName(random);
    return {
      sentence: `Ticket ${ticket} is assigned to ${value}.`,
      question: `Who is ticket ${ticket} assigned to?`,
      value,
    };
  },
  (random) => {
    const topic = random.pick(TOPICS);
    const value = `${random.integer(7, 19)}:${random.pick(['00', '15', '30', '45'])}`;
    return {
      sentence: `The ${topic} meeting starts at ${value}.`,
      question: `When does the ${topic} meeting start?`,
      value,
    };
  },
];

/**
 * A document of manual-page text with facts in it, and a question about one of them, in forms that muse-nano knows. The
 * prompt is `text`, a blank line, `question`.
 */
export function needleDocument({ seed, approximateTokens, tokenCount }: NeedleDocumentOptions): NeedleDocument {
  const random = new Random(seed);
  const facts = differentFacts(random, Math.min(12, Math.max(1, Math.round(approximateTokens / TOKENS_PER_FACT))));
  const asked = random.pick(facts);
  let remaining = approximateTokens - tokenCount(facts.map((fact) => fact.sentence).join(' '));
  const paragraphs: string[] = [];
  while (remaining > 0) {
    const paragraph = fillerParagraph(random);
    paragraphs.push(paragraph);
    remaining -= tokenCount(`${paragraph}\n\n`);
  }
  for (const fact of facts) {
    const at = random.integer(0, Math.max(0, paragraphs.length - 1));
    paragraphs[at] = withFact(random, paragraphs[at] ?? '', fact.sentence);
  }
  return { text: paragraphs.join('\n\n'), question: asked.question, answer: asked.sentence, value: asked.value };
}

/** No two facts answer the same question. */
function differentFacts(random: Random, count: number): Fact[] {
  const facts = new Map<string, Fact>();
  while (facts.size < count) {
    const fact = random.pick(FACTS)(random);
    if (!facts.has(fact.question)) facts.set(fact.question, fact);
  }
  return [...facts.values()];
}

function withFact(random: Random, paragraph: string, sentence: string): string {
  if (paragraph === '') return sentence;
  const sentences = paragraph.split(/(?<=\.) /);
  sentences.splice(random.integer(0, sentences.length), 0, sentence);
  return sentences.join(' ');
}

interface ManualPage {
  name: string;
  section: string;
  description: string;
}

let manualPages: ManualPage[] | null = null;

function fillerParagraph(random: Random): string {
  manualPages ??= readManualPages();
  const sentences: string[] = [];
  for (let count = random.integer(3, 5); count > 0; count -= 1) {
    const { name, section, description } = random.pick(manualPages);
    sentences.push(
      random.pick([
        `The manual page ${name}(${section}) describes ${description}.`,
        `See ${name}(${section}) for more information: ${description}.`,
        `The purpose of ${name} is as follows: ${description}.`,
        `In section ${section} there is an entry for ${name}, "${description}".`,
      ]),
    );
  }
  return sentences.join(' ');
}

/** The one-line descriptions that muse-nano's training text was made with. */
function readManualPages(): ManualPage[] {
  const table = readFileSync(new URL('../../../models/muse-nano/man.tsv', import.meta.url), 'utf8');
  return table.split('\n').flatMap((line) => {
    const [name, section, description] = line.split('\t');
    if (name === undefined || section === undefined || description === undefined) return [];
    return [{ name, section, description: description.replace(/[ .]+$/, '') }];
  });
}

function inventedWord(random: Random): string {
  let word = '';
  for (let syllables = random.integer(2, 3); syllables > 0; syllables -= 1) {
    word += random.pick(CONSONANTS) + random.pick(VOWELS);
  }
  return word + random.pick(['', 'n', 'r', 's', 'x', 'l', 'k']);
}

function fullName(random: Random): string {
  return `${random.pick(FIRST_NAMES)} ${random.pick(LAST_NAMES)}`;
}

function capitalized(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}
