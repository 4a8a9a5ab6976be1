#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "geometry.h"
#include "state_form.h"
#include "state_layout.h"
#include "state_memory.h"

namespace muser::kv {

/// Reads rows in wire form (f16, K in half-split order, not rotated) out of a sequence state.
/// Reading is const and safe from several threads.
class ExportView {
 public:
  /// `state` is what llama_state_seq_get_data_ext (flags 0) wrote for a sequence that holds the global rows
  /// [start, end) and at least the window rows [window_start, end). Cells may be in any order. Throws StateForm when
  /// the bytes are not of the learned form, Sequence when a row is missing, there twice, or outside [start, end).
  ExportView(const Geometry& geometry, const StateForm& form, StateMemory state, uint32_t start, uint32_t end,
             uint32_t window_start);
  /// The same from a vector, which is copied.
  ExportView(const Geometry& geometry, const StateForm& form, const std::vector<uint8_t>& state, uint32_t start,
             uint32_t end, uint32_t window_start);

  /// Writes rows [token_start, token_start + token_count) of one layer to `out`; returns the bytes written.
  /// Throws Range (layer or rows outside, `capacity` too small), ValueInvalid (a value that f16 cannot carry).
  size_t read(uint32_t layer, Kind kind, uint32_t token_start, uint32_t token_count, uint8_t* out,
              size_t capacity) const;

  size_t size() const { return state_.size(); }
  uint32_t start() const { return tokens_.start; }
  uint32_t end() const { return tokens_.end; }
  uint32_t window_start() const { return window_start_; }

 private:
  struct Source;
  void read_run(const Source& source, Kind kind, uint32_t cell, uint32_t rows, uint8_t* out) const;

  Geometry geometry_;
  StateForm form_;
  StateMemory state_;
  TokenRange tokens_;
  uint32_t window_start_;
  StateLayout layout_;
  std::vector<uint32_t> global_cells_;  ///< Cell of row start + i.
  std::vector<uint32_t> window_cells_;  ///< Cell of row window_start + i.
};

/// The unbroken run of window rows that ends at the highest position of a state written with PARTIAL_ONLY (window
/// cache alone). Empty when there are none. For finding out which window rows llama.cpp still holds before a rollback:
/// copy the rows below the rollback point to the spare sequence and get its PARTIAL_ONLY state.
TokenRange window_rows_in(const Geometry& geometry, const StateForm& form, const std::vector<uint8_t>& partial_state);

}  // namespace muser::kv
