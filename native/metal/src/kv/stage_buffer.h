#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "geometry.h"
#include "state_form.h"
#include "state_layout.h"
#include "state_memory.h"
#include "token_cover.h"

namespace muser::kv {

/// The sequence state of one chunk while it is being filled: global rows [start, end) and window rows
/// [window_start, end). `window_start == end` means that the chunk brings no window rows.
/// Not thread-safe; may be used on any one thread at a time.
class StageBuffer {
 public:
  /// Allocates the state. Throws Range when the ranges or sizes do not fit.
  StageBuffer(const Geometry& geometry, const StateForm& form, uint32_t start, uint32_t end, uint32_t window_start);

  /// Converts `token_count` rows in wire form (`size` bytes, token-major, K in half-split order) into their place.
  /// Throws Range (layer, tokens or size outside, rows that are there already), ValueInvalid (NaN, infinity, a bf16
  /// value beyond f16). After a throw the rows count as absent and may be put again.
  void put(uint32_t layer, Kind kind, uint32_t token_start, uint32_t token_count, WireType type, const uint8_t* bytes,
           size_t size);

  /// True when every row of every layer has been put.
  bool complete() const { return missing_rows_ == 0; }

  /// The finished state for llama_state_seq_set_data_ext (flags 0), addressed to sequence `seq_id`. Valid until the
  /// next call or the end of this object. Throws Sequence when rows are missing.
  std::span<const uint8_t> state(int32_t seq_id);

  size_t size() const { return layout_.size(); }
  uint32_t start() const { return tokens_.start; }
  uint32_t end() const { return tokens_.end; }
  uint32_t window_start() const { return window_start_; }

 private:
  void write_headers();
  void put_plain(const uint8_t* bytes, WireType type, Kind kind, uint32_t rows, uint8_t* target);
  void put_transposed(const uint8_t* bytes, WireType type, uint32_t rows, uint32_t first_row, uint32_t cells,
                      uint8_t* target);
  void put_quantized(const uint8_t* bytes, WireType type, Kind kind, uint32_t rows, uint8_t* target);

  Geometry geometry_;
  StateForm form_;
  TokenRange tokens_;
  uint32_t window_start_;
  StateLayout layout_;
  StateMemory state_;
  std::vector<TokenCover> covers_;  ///< Two for each layer: K, then V.
  std::vector<uint16_t> half_rows_;
  std::vector<float> float_rows_;
  uint64_t missing_rows_ = 0;
};

}  // namespace muser::kv
