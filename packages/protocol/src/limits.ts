// Every cap of the hand-off protocol. Both ends enforce each of them, on what they send and on what they receive, and
// before anything of the announced size is allocated. docs/LIMITS.md is generated from this file and
// docs/limit-meanings.ts.

export const PROTOCOL_VERSION = 1;

const KIB = 1024;
const MIB = 1024 * KIB;

export const MAX_PAYLOAD_BYTES = 1 * MIB;
export const MAX_MESSAGE_BYTES = 2 * MIB;
export const MAX_SHARD_HEADER_BYTES = 8 * KIB;
export const MAX_SIGNED_BODY_BYTES = 8 * KIB;
export const MAX_TICKET_BYTES = 1 * KIB;
export const MAX_NAME_BYTES = 128;
export const MAX_VERSION_BYTES = 64;
export const MAX_ADDRESS_BYTES = 256;
export const MAX_ADDRESSES = 16;
export const MAX_PRODUCERS = 256;
export const MAX_REVOKED_NODES = 4096;
export const MAX_CERTIFICATE_BYTES = 4 * KIB;
export const MAX_SERIAL_BYTES = 64;
export const MAX_ERROR_CODE_BYTES = 64;
export const MAX_ERROR_MESSAGE_BYTES = 1024;

export const MIN_PROMPT_TOKENS = 2;
export const MAX_PROMPT_TOKENS = 2 ** 17;
export const MAX_CHUNK_TOKENS = 2 ** 14;
export const MAX_LAYERS = 256;
export const MAX_PARTS_PER_SHARD = 512;
export const MAX_KV_HEADS = 256;
export const MAX_HEAD_DIMENSION = 1024;
export const MAX_VOCABULARY_SIZE = 2 ** 24;
export const MAX_WIRE_TYPES = 8;
export const MAX_QUEUE_LENGTH = 2 ** 20;

export const NONCE_BYTES = 16;
export const TICKET_ID_BYTES = 16;
export const DIGEST_BYTES = 32;
export const PUBLIC_KEY_BYTES = 32;
export const SEED_BYTES = 32;
export const SIGNATURE_BYTES = 64;
export const NODE_ID_BYTES = 27;

export const MAX_DEADLINE_MS = 60 * 60_000;
export const TICKET_LIFETIME_MS = 15 * 60_000;
export const MAX_CLOCK_SKEW_MS = 5 * 60_000;
export const MIN_WATCH_INTERVAL_MS = 100;
export const MAX_WATCH_INTERVAL_MS = 60_000;
