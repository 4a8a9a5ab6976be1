import { rowBytesOf, type Geometry } from '@muser/protocol';

/** Most bytes of chunks between wire and cache. A producer whose chunks are larger is refused at Begin. */
export const MAX_STAGED_BYTES = 512 * 1024 * 1024;

/** Bytes that a chunk of `tokens` tokens takes while it waits to be installed, about. */
export function stageBytes(geometry: Geometry, tokens: number): number {
  const rowBytes = 2 * rowBytesOf(geometry);
  const globalLayers = geometry.layers.filter((kind) => kind === 'global').length;
  const windowLayers = geometry.layers.length - globalLayers;
  return rowBytes * (globalLayers * tokens + windowLayers * Math.min(tokens, geometry.windowTokens));
}
