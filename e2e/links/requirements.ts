import { iproute } from './ip.js';
import { removeLeftovers, TwoMachines } from './two-machines.js';

/** What this machine lacks for links between namespaces, for people; empty when nothing. */
export async function missing(): Promise<string[]> {
  if (process.platform !== 'linux') return [`Linux: network namespaces are needed, this is ${process.platform}`];
  const problems: string[] = [];
  for (const tool of ['ip', 'tc'] as const) {
    await iproute(tool, '-V').catch(() => problems.push(`\`${tool}\`: install the package iproute2`));
  }
  if (process.getuid?.() !== 0) problems.push('root: network namespaces and queues can be made by root only');
  if (problems.length > 0) return problems;
  try {
    await removeLeftovers();
    // The whole of it, once, is the only sure sign that the kernel has namespaces, veth and tbf.
    await (await TwoMachines.create()).remove();
  } catch (error) {
    problems.push(`a kernel with network namespaces, veth and tbf: ${(error as Error).message}`);
  }
  return problems;
}
