#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "kv/geometry.h"
#include "llama.h"

namespace muser {

/// What a model's KV cache is like: shape, and how K turns with the position.
struct CacheForm {
  kv::Geometry geometry;  ///< Without layers: llama.cpp keeps something else than K and V of every layer.
  float rope_base = 0;    ///< 0 when `geometry` has no layers.
  bool rope_on_window_layers_only = false;
  std::string local_only;  ///< Why rows cannot be handed over between two machines; empty when they can.
};

/// Asks llama.cpp itself, whatever the architecture is called: evaluates single tokens in a small context and looks at
/// the cache and at K. `cancelled` (may be null) ends it soon. Throws MODEL_UNSUPPORTED (no decoder that keeps a KV
/// cache), ENGINE_FAILED, CANCELLED.
CacheForm find_cache_form(llama_model* model, int32_t threads, const std::atomic<bool>* cancelled);

}  // namespace muser
