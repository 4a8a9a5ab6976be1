// A module loader: Node imports the TypeScript of our packages as it is, types left out, with a call of `__reached` at each
// branch. So what is fuzzed need not be built, and what an input reaches is known by the lines of the source.
import { existsSync, readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { ROOT } from '../run.mjs';

const OPTIONS = {
  module: ts.ModuleKind.ESNext,
  target: ts.ScriptTarget.ES2022,
  verbatimModuleSyntax: true,
  inlineSourceMap: true,
};
/** Folders of sources, by the folder that they are compiled into. */
const SOURCES = [
  ['/packages/', '/dist/', '/src/'],
  ['/native/metal/', '/dist/', '/ts/'],
];
/** Large primes, so that the places of two files seldom have the same number. */
const [FILE_FACTOR, PLACE_FACTOR] = [16_777_619, 40_503];

export async function resolve(specifier, context, next) {
  if (specifier.startsWith('.') && context.parentURL?.endsWith('.ts')) {
    const url = new URL(specifier.replace(/\.js$/, '.ts'), context.parentURL);
    if (existsSync(url)) return { url: url.href, format: 'module', shortCircuit: true };
  }
  const found = await next(specifier, context);
  const source = sourceOf(found.url);
  return source === null ? found : { url: source, format: 'module', shortCircuit: true };
}

/** The source of a compiled file of ours. */
function sourceOf(url) {
  if (!url.startsWith('file:') || url.includes('/node_modules/')) return null;
  for (const [packages, compiled, folder] of SOURCES) {
    if (!url.includes(packages) || !url.includes(compiled)) continue;
    const source = url.replace(compiled, folder).replace(/\.js$/, '.ts');
    if (existsSync(new URL(source))) return source;
  }
  return null;
}

export async function load(url, context, next) {
  if (!url.startsWith('file:') || !url.endsWith('.ts')) return next(url, context);
  const fileName = fileURLToPath(url);
  // Targets and their helpers are not what is tested.
  const path = relative(ROOT, fileName);
  const before = /(^|\/)(fuzz|test|testing)\//.test(path) ? [] : [coverage(path)];
  const { outputText } = ts.transpileModule(readFileSync(fileName, 'utf8'), {
    compilerOptions: OPTIONS,
    fileName,
    transformers: { before },
  });
  return { format: 'module', source: outputText, shortCircuit: true };
}

/** Marks each block, clause of a switch, and side of `?:`, `&&`, `||`, `??`. */
function coverage(fileName) {
  let place = [...fileName].reduce((hash, letter) => Math.imul(hash ^ letter.charCodeAt(0), FILE_FACTOR), 0);
  return (context) => {
    const { factory } = context;
    const call = () => {
      place = (place + PLACE_FACTOR) >>> 0;
      const number = factory.createNumericLiteral(place % 65_536);
      return factory.createCallExpression(factory.createIdentifier('__reached'), undefined, [number]);
    };
    const statements = (list) => [factory.createExpressionStatement(call()), ...list];
    const expression = (node) => factory.createParenthesizedExpression(factory.createComma(call(), node));
    const visit = (node) => {
      const inner = ts.visitEachChild(node, visit, context);
      if (ts.isBlock(inner)) return factory.updateBlock(inner, statements(inner.statements));
      if (ts.isCaseClause(inner))
        return factory.updateCaseClause(inner, inner.expression, statements(inner.statements));
      if (ts.isDefaultClause(inner)) return factory.updateDefaultClause(inner, statements(inner.statements));
      if (ts.isConditionalExpression(inner)) {
        const { condition, questionToken, whenTrue, colonToken, whenFalse } = inner;
        const [yes, no] = [expression(whenTrue), expression(whenFalse)];
        return factory.updateConditionalExpression(inner, condition, questionToken, yes, colonToken, no);
      }
      if (ts.isBinaryExpression(inner) && isChoice(inner.operatorToken.kind)) {
        return factory.updateBinaryExpression(inner, inner.left, inner.operatorToken, expression(inner.right));
      }
      return inner;
    };
    return (source) => ts.visitNode(source, visit);
  };
}

function isChoice(operator) {
  const { AmpersandAmpersandToken, BarBarToken, QuestionQuestionToken } = ts.SyntaxKind;
  return [AmpersandAmpersandToken, BarBarToken, QuestionQuestionToken].includes(operator);
}
