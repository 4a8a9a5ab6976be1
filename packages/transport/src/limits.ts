import { MAX_MESSAGE_BYTES } from '@muser/protocol';

const MIB = 1024 * 1024;

/** HTTP/2 window of a stream and of a connection; with the default of 64 KiB a stream moves 64 KiB a round trip. */
export const FLOW_CONTROL_WINDOW_BYTES = 16 * MIB;

/** What a server has handed to the socket layer and the kernel has not taken yet. */
export const MAX_TRANSFER_BYTES_IN_FLIGHT = 8 * MIB;
export const MAX_PEER_BYTES_IN_FLIGHT = 32 * MIB;
export const MAX_PROCESS_BYTES_IN_FLIGHT = 128 * MIB;

/** What a client has decoded and its reader has not taken yet; beside it at most the flow-control window is held. */
export const MAX_RECEIVED_BYTES_WAITING = 2 * MAX_MESSAGE_BYTES;
export const MAX_PEER_RECEIVED_BYTES_WAITING = 32 * MIB;
export const MAX_PROCESS_RECEIVED_BYTES_WAITING = 128 * MIB;

/** Requests that a server is reading, each counted as the longest that it may be. The others wait in a window of 64 KiB. */
export const MAX_PEER_REQUEST_BYTES = 32 * MIB;
export const MAX_PROCESS_REQUEST_BYTES = 128 * MIB;

/** From accept to the end of the TLS handshake. */
export const HANDSHAKE_TIMEOUT_MS = 5_000;
/** Connections whose handshake is not done; one more drops the oldest. */
export const MAX_HANDSHAKES = 64;
export const MAX_CONNECTIONS = 512;
export const MAX_CONNECTIONS_PER_PEER = 16;
export const MAX_STREAMS_PER_CONNECTION = 64;
/** Calls of one peer that run, on all its connections. */
export const MAX_CALLS_PER_PEER = 128;

/** From the handshake to the first call of a connection, and from the beginning of a call to the end of its request. */
export const REQUEST_TIMEOUT_MS = 10_000;

/**
 * What a server takes from one peer, on all its connections: at once, and on and on. The first is more than 64 requests with the
 * longest prompts take. Beyond it the connections are dropped: nothing but a flood of frames is that large.
 */
export const MAX_PEER_BURST_BYTES = 64 * MIB;
export const MAX_PEER_BYTES_PER_SECOND = 8 * MIB;
/** What a call counts as, beside its own bytes: so 512 of them at once, and 64 a second on and on. */
export const CALL_COST_BYTES = 128 * 1024;

/** How soon a connection that the kernel has given up is noticed, however much is waiting to be written to it. */
export const CONNECTION_PROBE_INTERVAL_MS = 250;

/** From the call to an established connection. */
export const CONNECT_TIMEOUT_MS = 5_000;
/** A reader that takes nothing for so long loses its stream. */
export const SEND_STALL_TIMEOUT_MS = 30_000;

/**
 * Both ends ping at the same rate, also without calls, so that neither takes the other's pings for abuse. A ping waits behind
 * all that was written before it, which takes a link of 400 KB/s half a minute. A silent peer is noticed
 * sooner, by the idle limit of each stream; this ends connections on which nothing is expected.
 */
export const KEEPALIVE_INTERVAL_MS = 10_000;
export const KEEPALIVE_TIMEOUT_MS = 60_000;

export const INITIAL_RECONNECT_BACKOFF_MS = 200;
export const MAX_RECONNECT_BACKOFF_MS = 2_000;
