// Runs the cells on links, in a folder that is made and removed for it. It is started by main.js on the Mac's side of the cable, where decoder and coordinator live too.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import type { NeedleDocument } from '@muser/testing';
import { Cleanups } from '../test/support/cleanups.js';
import { needleDocuments } from '../test/support/needles.js';
import { Reference } from '../test/support/reference.js';
import { CELLS, runCell, type CellResult } from './cells.js';
import { describeLink, LINKS, type Link } from './link.js';
import { measureLink, type LinkFigures } from './measure.js';
import { ENGINE, Scene } from './scene.js';
import { TwoMachines } from './two-machines.js';

export interface LinkReport {
  readonly name: string;
  readonly description: string;
  readonly figures: LinkFigures;
}

export interface Report {
  readonly links: LinkReport[];
  readonly cells: CellResult[];
}

const [owner = '0', folder = '', ...names] = process.argv.slice(2);
const say = (text: string): void => void process.stderr.write(`links: ${text}\n`);
const cleanups = new Cleanups();
let stopped = false;

/** Ends everything that was started; what still waits fails with it. */
async function stop(): Promise<void> {
  if (stopped) return;
  stopped = true;
  await cleanups.run().catch((error: unknown) => say(String(error)));
  // Main does it too, unless it was killed.
  rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  process.exit(130);
}
// Not once(): execa ends this process at a signal that nobody listens to any more.
process.on('SIGTERM', () => void stop());
// Main is gone, however it ended.
process.stdin.resume().once('end', () => void stop());

async function main(): Promise<Report> {
  const machines = new TwoMachines(Number(owner));
  const documents = await needleDocuments(CELLS.flatMap((cell) => [...cell.documents, ...cell.documents]));
  const reference = await Reference.start(join(folder, 'reference'), ENGINE);
  cleanups.add(() => reference.stop());
  const report: Report = { links: [], cells: [] };
  for (const link of LINKS.filter(({ name }) => names.length === 0 || names.includes(name))) {
    await runLink(join(folder, link.name), link, { machines, reference, documents }, report);
  }
  return report;
}

async function runLink(
  home: string,
  link: Link,
  { machines, reference, documents }: { machines: TwoMachines; reference: Reference; documents: NeedleDocument[] },
  report: Report,
): Promise<void> {
  say(`${link.name}: ${describeLink(link)}`);
  await machines.setRate(link.bitsPerSecond);
  const figures = await measureLink(machines, link);
  report.links.push({ name: link.name, description: describeLink(link), figures });
  const own = new Cleanups();
  cleanups.add(() => own.run());
  try {
    const scene = await Scene.start(home, link, { machines, reference, cleanups: own });
    let next = 0;
    for (const cell of CELLS) {
      const take = (): NeedleDocument[] => documents.slice(next, (next += cell.documents.length));
      const its = [take(), take()] as const;
      if (!cell.runsOn(link)) continue;
      const result = await runCell(cell, scene, its);
      say(
        `${link.name}: ${cell.name}: ${result.problem ?? result.way}${result.fallback ? `, ${result.fallback}` : ''}`,
      );
      report.cells.push(result);
    }
  } finally {
    await own.run();
  }
}

try {
  const report = await main();
  if (!stopped) {
    process.stdout.write(`${JSON.stringify(report)}\n`);
    await cleanups.run();
    process.exit(0);
  }
} catch (error) {
  if (!stopped) {
    say(error instanceof Error ? (error.stack ?? error.message) : String(error));
    await cleanups.run().catch((problem: unknown) => say(String(problem)));
    process.exit(1);
  }
}
