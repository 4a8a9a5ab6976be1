import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import js from '@eslint/js';
import { createTypeScriptImportResolver } from 'eslint-import-resolver-typescript';
import importX from 'eslint-plugin-import-x';
import tseslint from 'typescript-eslint';

const projects = [
  'packages/*/tsconfig.json',
  'native/metal/tsconfig.json',
  'bench/tsconfig.json',
  'e2e/tsconfig.json',
  'tsconfig.tests.json',
];

const root = import.meta.dirname;
const workspaces = [
  ...readdirSync(join(root, 'packages')).map((name) => `packages/${name}`),
  'native/metal',
  'bench',
  'e2e',
];

/** A package may import what its own package.json names; its tests also what the root's names (vitest). */
const ownDependencies = workspaces.map((folder) => ({
  files: [`${folder}/**/*.ts`],
  rules: {
    'import-x/no-extraneous-dependencies': [
      'error',
      {
        packageDir: [join(root, folder), root],
        devDependencies: ['**/test/**', '**/fuzz/**', '**/scripts/**', 'e2e/**'],
      },
    ],
  },
}));

export default tseslint.config(
  { ignores: ['**/dist/', '**/build/', '**/node_modules/', '.cache/', 'models/', '**/.venv/'] },
  js.configs.recommended,
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.recommendedTypeChecked],
    languageOptions: { parserOptions: { project: projects, tsconfigRootDir: root } },
    plugins: { 'import-x': importX },
    settings: { 'import-x/resolver-next': [createTypeScriptImportResolver({ project: projects })] },
    rules: {
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true, allowBoolean: true }],
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      'import-x/no-cycle': 'error',
      'import-x/no-relative-packages': 'error',
      'no-console': 'error',
    },
  },
  ...ownDependencies,
  {
    // Matchers such as expect.any() and parsed JSON are `any`.
    files: ['**/test/**/*.ts', '**/fuzz/**/*.ts'],
    rules: { '@typescript-eslint/no-unsafe-assignment': 'off' },
  },
  {
    files: ['**/*.mjs'],
    languageOptions: { globals: { process: 'readonly', Buffer: 'readonly', console: 'readonly', URL: 'readonly' } },
  },
);
