#pragma once

#include <cstddef>
#include <cstdint>

#include "geometry.h"

namespace muser::kv {

/// The form in which this build of llama.cpp writes a sequence's state.
struct StateForm {
  CacheType type = CacheType::F16;
  bool v_transposed = false;  ///< V element-major (flash attention off).
  uint32_t magic = 0;         ///< First word of every state.
  int32_t type_id = 0;        ///< ggml's number for `type`, as the state carries it.
  uint64_t row_bytes = 0;     ///< Bytes of one K row in the cache (and of one V row, unless transposed).
  uint32_t k_rotation = 0;    ///< Size of the Hadamard blocks that K is rotated by in the cache; 0 = not rotated.
  uint32_t v_rotation = 0;    ///< The same for V.
};

/// Learns the form from a state that llama_state_seq_get_data_ext wrote (flags 0) for a probe sequence that has at
/// least one token. Every field is compared with what `geometry` implies; throws StateForm on anything unknown
/// (other cell records, cache types, layer counts, row sizes, several streams), Range when `geometry` is unusable.
StateForm learn_state_form(const uint8_t* state, size_t size, const Geometry& geometry);

}  // namespace muser::kv
