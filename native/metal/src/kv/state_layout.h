#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "geometry.h"
#include "state_form.h"

namespace muser::kv {

/// ggml's numbers for the cache types, as a state carries them.
constexpr int32_t kGgmlTypeF16 = 1;
constexpr int32_t kGgmlTypeQ8_0 = 8;

/// Bytes of the parts of a state.
constexpr size_t kStateHeaderBytes = 8;   ///< u32 magic, i32 sequence id.
constexpr size_t kCellBytes = 12;         ///< i32 position, u32 1, i32 sequence id.
constexpr size_t kTensorHeaderBytes = 12; ///< i32 type, then u64 row bytes, or u32 element bytes and u32 row elements.

/// Where everything lies in a state with given cell counts. The form: header, then for each cache (global layers, then
/// window layers if the model has any): u32 streams = 1, u32 cells, and unless that is 0: cell records, u32 V
/// transposed, u32 layers, K of each layer (tensor header, rows), V of each layer.
class StateLayout {
 public:
  /// One cache's part. Offsets count from the start of the state.
  struct Cache {
    LayerKind kind;
    uint32_t cells = 0;
    uint32_t layers = 0;
    size_t begin = 0;        ///< Of the stream count.
    size_t cell_records = 0;
    size_t data = 0;         ///< Of the V-transposed word.
    size_t end = 0;
  };

  /// Throws Range when a size overflows.
  StateLayout(const Geometry& geometry, const StateForm& form, uint32_t global_cells, uint32_t window_cells);
  /// For a state written with PARTIAL_ONLY: the window cache alone.
  static StateLayout window_only(const Geometry& geometry, const StateForm& form, uint32_t window_cells);

  const std::vector<Cache>& caches() const { return caches_; }
  const Cache& cache_of(uint32_t layer) const { return caches_[places_[layer].cache]; }
  size_t size() const { return size_; }

  /// Offset of the tensor header of a layer's K or V; its rows follow.
  size_t tensor(uint32_t layer, Kind kind) const;
  size_t rows(uint32_t layer, Kind kind) const { return tensor(layer, kind) + kTensorHeaderBytes; }
  /// The same by place within a cache.
  size_t tensor_at(const Cache& cache, uint32_t index, Kind kind) const;

 private:
  struct Place {
    uint32_t cache;
    uint32_t index;
  };

  StateLayout(const Geometry& geometry, const StateForm& form);
  void add_cache(const Geometry& geometry, LayerKind kind, uint32_t cells);

  size_t tensor_row_bytes_;  ///< Of K and of V alike: a transposed V takes the same bytes.
  std::vector<Cache> caches_;
  std::vector<Place> places_;
  size_t size_ = kStateHeaderBytes;
};

}  // namespace muser::kv
