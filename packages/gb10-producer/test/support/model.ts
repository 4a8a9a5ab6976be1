import { fileURLToPath } from 'node:url';

export const MUSE_NANO = fileURLToPath(new URL('../../../../models/muse-nano/muse-nano-q8_0.gguf', import.meta.url));
