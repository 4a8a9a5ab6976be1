#include "state_form.h"

#include <cstdlib>

#include "convert.h"
#include "state_layout.h"
#include "state_reader.h"

namespace muser::kv {

namespace {

constexpr uint32_t kSmallestRotation = 64;

/// llama.cpp rotates only quantized caches, and only heads whose dimension is a multiple of 64.
bool rotates(CacheType type, const Geometry& geometry) {
  const char* disabled = std::getenv("LLAMA_ATTN_ROT_DISABLE");
  if (disabled != nullptr && std::atoi(disabled) != 0) return false;
  return type != CacheType::F16 && geometry.head_dim % kSmallestRotation == 0;
}

/// K is rotated in the largest blocks that divide the head; V always in blocks of 64 (build_input_k_rot,
/// build_input_v_rot of llama-kv-cache.cpp).
uint32_t k_rotation_block(uint32_t head_dim) {
  uint32_t block = kSmallestRotation;
  while (head_dim % (block * 2) == 0) block *= 2;
  return block;
}

CacheType cache_type_of(int32_t type_id) {
  if (type_id == kGgmlTypeF16) return CacheType::F16;
  if (type_id == kGgmlTypeQ8_0) return CacheType::Q8_0;
  throw KvError(KvErrorCode::StateForm, "sequence state: cache type " + std::to_string(type_id) +
                                            " is not supported, only f16 (1) and q8_0 (8)");
}

uint64_t cache_row_bytes(CacheType type, const Geometry& geometry) {
  if (type == CacheType::F16) return geometry.wire_row_bytes();
  if (geometry.row_elements() % kQ8BlockElements != 0) {
    throw KvError(KvErrorCode::StateForm, "q8_0 needs rows of a multiple of 32 elements, this model has " +
                                              std::to_string(geometry.row_elements()));
  }
  return geometry.row_elements() / kQ8BlockElements * kQ8BlockBytes;
}

/// The global cache comes first; a model without global layers has it too, with cells but no layers.
StateForm read_first_headers(const StateBytes& state, const Geometry& geometry) {
  StateForm form;
  form.magic = state.at<uint32_t>(0);
  const uint32_t cells = cell_count_at(state, kStateHeaderBytes);
  if (cells == 0) throw KvError(KvErrorCode::StateForm, "the probe state has no cells");
  size_t data = kStateHeaderBytes + 2 * sizeof(uint32_t) + static_cast<size_t>(cells) * kCellBytes;
  if (geometry.layers_of(LayerKind::Global) == 0) {
    const size_t window_cache = data + 2 * sizeof(uint32_t);
    data = window_cache + 2 * sizeof(uint32_t) +
           static_cast<size_t>(cell_count_at(state, window_cache)) * kCellBytes;
  }
  form.v_transposed = state.at<uint32_t>(data) == 1;
  form.type_id = state.at<int32_t>(data + 2 * sizeof(uint32_t));
  return form;
}

}  // namespace

StateForm learn_state_form(const uint8_t* state, size_t size, const Geometry& geometry) {
  geometry.check();
  const StateBytes bytes(state, size);
  StateForm form = read_first_headers(bytes, geometry);
  form.type = cache_type_of(form.type_id);
  form.row_bytes = cache_row_bytes(form.type, geometry);
  if (form.v_transposed && form.type != CacheType::F16) {
    throw KvError(KvErrorCode::StateForm, "sequence state: a quantized cache with V transposed");
  }
  if (rotates(form.type, geometry)) {
    form.k_rotation = k_rotation_block(geometry.head_dim);
    form.v_rotation = kSmallestRotation;
  }

  const StateLayout layout = read_layout(bytes, form, geometry);
  const int32_t sequence = bytes.at<int32_t>(sizeof(uint32_t));
  for (const auto& cache : layout.caches()) {
    if (cache.cells == 0) throw KvError(KvErrorCode::StateForm, "the probe state has a cache without cells");
    cell_positions(bytes, cache, sequence);
  }
  return form;
}

}  // namespace muser::kv
