#include "state_layout.h"

namespace muser::kv {

namespace {

size_t checked_add(size_t a, size_t b) {
  size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw KvError(KvErrorCode::Range, "sequence state: its size overflows");
  return sum;
}

size_t checked_multiply(size_t a, size_t b) {
  size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw KvError(KvErrorCode::Range, "sequence state: its size overflows");
  }
  return product;
}

}  // namespace

StateLayout::StateLayout(const Geometry& geometry, const StateForm& form)
    : tensor_row_bytes_(static_cast<size_t>(form.row_bytes)), places_(geometry.layers.size()) {}

StateLayout::StateLayout(const Geometry& geometry, const StateForm& form, uint32_t global_cells, uint32_t window_cells)
    : StateLayout(geometry, form) {
  add_cache(geometry, LayerKind::Global, global_cells);
  if (geometry.has_window()) add_cache(geometry, LayerKind::Window, window_cells);
}

StateLayout StateLayout::window_only(const Geometry& geometry, const StateForm& form, uint32_t window_cells) {
  StateLayout layout(geometry, form);
  layout.add_cache(geometry, LayerKind::Window, window_cells);
  return layout;
}

void StateLayout::add_cache(const Geometry& geometry, LayerKind kind, uint32_t cells) {
  Cache cache;
  cache.kind = kind;
  cache.cells = cells;
  for (size_t layer = 0; layer < geometry.layers.size(); ++layer) {
    if (geometry.layers[layer] != kind) continue;
    places_[layer] = {static_cast<uint32_t>(caches_.size()), cache.layers++};
  }
  cache.begin = size_;
  cache.cell_records = size_ + 2 * sizeof(uint32_t);
  cache.data = cache.cell_records;
  cache.end = cache.cell_records;
  if (cells > 0) {
    cache.data = checked_add(cache.cell_records, checked_multiply(cells, kCellBytes));
    const size_t tensor_bytes = checked_add(kTensorHeaderBytes, checked_multiply(cells, tensor_row_bytes_));
    const size_t tensors = checked_multiply(tensor_bytes, 2 * static_cast<size_t>(cache.layers));
    cache.end = checked_add(checked_add(cache.data, 2 * sizeof(uint32_t)), tensors);
  }
  size_ = cache.end;
  caches_.push_back(cache);
}

size_t StateLayout::tensor_at(const Cache& cache, uint32_t index, Kind kind) const {
  const size_t tensor_bytes = kTensorHeaderBytes + cache.cells * tensor_row_bytes_;
  const size_t place = kind == Kind::K ? index : static_cast<size_t>(cache.layers) + index;
  return cache.data + 2 * sizeof(uint32_t) + place * tensor_bytes;
}

size_t StateLayout::tensor(uint32_t layer, Kind kind) const {
  return tensor_at(cache_of(layer), places_[layer].index, kind);
}

}  // namespace muser::kv
