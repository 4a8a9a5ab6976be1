import type { ChannelOptions } from '@grpc/grpc-js';
import { MAX_MESSAGE_BYTES } from '@muser/protocol';
import {
  FLOW_CONTROL_WINDOW_BYTES,
  INITIAL_RECONNECT_BACKOFF_MS,
  KEEPALIVE_INTERVAL_MS,
  KEEPALIVE_TIMEOUT_MS,
  MAX_RECONNECT_BACKOFF_MS,
  MAX_STREAMS_PER_CONNECTION,
} from './limits.js';

/** Nodes are known by their certificate's node id, never by a host name; this name only fills the SNI and :authority fields. */
const NAME_ON_THE_WIRE = 'muser.internal';

const COMMON_OPTIONS = {
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
  'grpc-node.flow_control_window': FLOW_CONTROL_WINDOW_BYTES,
  'grpc.keepalive_time_ms': KEEPALIVE_INTERVAL_MS,
  'grpc.keepalive_timeout_ms': KEEPALIVE_TIMEOUT_MS,
  'grpc.keepalive_permit_without_calls': 1,
  // Channelz keeps records of every socket and call of the process for a debugging service that is not offered.
  'grpc.enable_channelz': 0,
} satisfies ChannelOptions;

export const SERVER_OPTIONS: ChannelOptions = {
  ...COMMON_OPTIONS,
  'grpc.max_concurrent_streams': MAX_STREAMS_PER_CONNECTION,
};

export const CLIENT_OPTIONS: ChannelOptions = {
  ...COMMON_OPTIONS,
  'grpc.ssl_target_name_override': NAME_ON_THE_WIRE,
  'grpc.default_authority': NAME_ON_THE_WIRE,
  // Never through a proxy that happens to be in the environment.
  'grpc.enable_http_proxy': 0,
  // A connection made with one identity is never used for another one.
  'grpc.use_local_subchannel_pool': 1,
  // Retries are decided above, where it is known what has been received already.
  'grpc.enable_retries': 0,
  'grpc.service_config_disable_resolution': 1,
  'grpc.initial_reconnect_backoff_ms': INITIAL_RECONNECT_BACKOFF_MS,
  'grpc.max_reconnect_backoff_ms': MAX_RECONNECT_BACKOFF_MS,
};
