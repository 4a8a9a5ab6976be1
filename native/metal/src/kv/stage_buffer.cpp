#include "stage_buffer.h"

#include <algorithm>
#include <climits>
#include <string>

#include "convert.h"
#include "state_reader.h"

namespace muser::kv {

namespace {

/// Rows that are converted at a time when an intermediate form is needed: small enough to stay in the L1 and L2 caches.
constexpr uint32_t kBlockRows = 32;

void check_ranges(const Geometry& geometry, TokenRange chunk, uint32_t window_start) {
  geometry.check();
  if (chunk.start >= chunk.end || chunk.end > static_cast<uint32_t>(INT_MAX)) {
    throw KvError(KvErrorCode::Range, "a chunk of tokens " + to_string(chunk));
  }
  const TokenRange window{window_start, chunk.end};
  if (window_start > chunk.end || !chunk.contains(window)) {
    throw KvError(KvErrorCode::Range,
                  "window rows from " + std::to_string(window_start) + " lie outside the chunk " + to_string(chunk));
  }
  if (geometry.has_window() && window.count() > geometry.window) {
    throw KvError(KvErrorCode::Range, "window rows " + to_string(window) + " are more than the window of " +
                                          std::to_string(geometry.window) + " tokens");
  }
}

}  // namespace

StageBuffer::StageBuffer(const Geometry& geometry, const StateForm& form, uint32_t start, uint32_t end,
                         uint32_t window_start)
    : geometry_((check_ranges(geometry, {start, end}, window_start), geometry)),
      form_(form),
      tokens_{start, end},
      window_start_(window_start),
      layout_(geometry, form, end - start, end - window_start),
      state_(layout_.size()),
      covers_(2 * geometry.layers.size()) {
  missing_rows_ = 2 * (static_cast<uint64_t>(geometry.layers_of(LayerKind::Global)) * (end - start) +
                       static_cast<uint64_t>(geometry.layers_of(LayerKind::Window)) * (end - window_start));
  write_headers();
}

void StageBuffer::write_headers() {
  uint8_t* state = state_.data();
  store<uint32_t>(state, form_.magic);
  store<int32_t>(state + 4, 0);
  for (const auto& cache : layout_.caches()) {
    store<uint32_t>(state + cache.begin, 1);
    store<uint32_t>(state + cache.begin + 4, cache.cells);
    if (cache.cells == 0) continue;
    for (uint32_t cell = 0; cell < cache.cells; ++cell) {
      uint8_t* record = state + cache.cell_records + cell * kCellBytes;
      store<int32_t>(record, static_cast<int32_t>(tokens_.end - cache.cells + cell));
      store<uint32_t>(record + 4, 1);
      store<int32_t>(record + 8, 0);
    }
    store<uint32_t>(state + cache.data, form_.v_transposed ? 1 : 0);
    store<uint32_t>(state + cache.data + 4, cache.layers);
    for (const Kind kind : {Kind::K, Kind::V}) {
      for (uint32_t index = 0; index < cache.layers; ++index) {
        uint8_t* header = state + layout_.tensor_at(cache, index, kind);
        store<int32_t>(header, form_.type_id);
        if (kind == Kind::V && form_.v_transposed) {
          store<uint32_t>(header + 4, sizeof(uint16_t));
          store<uint32_t>(header + 8, static_cast<uint32_t>(geometry_.row_elements()));
        } else {
          store<uint64_t>(header + 4, form_.row_bytes);
        }
      }
    }
  }
}

void StageBuffer::put(uint32_t layer, Kind kind, uint32_t token_start, uint32_t token_count, WireType type,
                      const uint8_t* bytes, size_t size) {
  if (layer >= geometry_.layers.size()) {
    throw KvError(KvErrorCode::Range, "layer " + std::to_string(layer) + " of " +
                                          std::to_string(geometry_.layers.size()));
  }
  const bool is_window = geometry_.layers[layer] == LayerKind::Window;
  const TokenRange rows{is_window ? window_start_ : tokens_.start, tokens_.end};
  const TokenRange range{token_start, token_start + token_count};
  if (token_count == 0 || range.end < range.start || !rows.contains(range)) {
    throw KvError(KvErrorCode::Range, std::to_string(token_count) + " rows from " + std::to_string(token_start) +
                                          " of layer " + std::to_string(layer) + " lie outside " +
                                          to_string(rows));
  }
  if (size != token_count * geometry_.wire_row_bytes()) {
    throw KvError(KvErrorCode::Range, std::to_string(size) + " bytes for " + std::to_string(token_count) +
                                          " rows of " + std::to_string(geometry_.wire_row_bytes()) + " bytes");
  }
  TokenCover& cover = covers_[2 * layer + (kind == Kind::V ? 1 : 0)];
  if (cover.overlaps(range)) {
    throw KvError(KvErrorCode::Range, "rows " + to_string(range) + " of layer " + std::to_string(layer) +
                                          " were put twice");
  }

  const uint32_t first_row = range.start - rows.start;
  uint8_t* target = state_.data() + layout_.rows(layer, kind);
  if (form_.type == CacheType::Q8_0) {
    put_quantized(bytes, type, kind, token_count, target + first_row * form_.row_bytes);
  } else if (kind == Kind::V && form_.v_transposed) {
    put_transposed(bytes, type, token_count, first_row, rows.count(), target);
  } else {
    put_plain(bytes, type, kind, token_count, target + first_row * form_.row_bytes);
  }
  cover.add(range);
  missing_rows_ -= token_count;
}

namespace {

/// Converts whole rows to f16 in the cache's head order.
void convert_rows(const Geometry& geometry, Kind kind, WireType type, const uint8_t* bytes, uint32_t rows,
                  uint8_t* out) {
  const Kernels& run = kernels();
  const size_t heads = static_cast<size_t>(rows) * geometry.kv_heads;
  const size_t elements = heads * geometry.head_dim;
  bool finite = false;
  if (kind == Kind::K && geometry.k_interleaved) {
    const auto interleave = type == WireType::F16 ? run.f16_interleave : run.bf16_interleave;
    finite = interleave(bytes, out, heads, geometry.head_dim);
  } else {
    const auto convert = type == WireType::F16 ? run.f16_to_f16 : run.bf16_to_f16;
    finite = convert(bytes, out, elements);
  }
  if (!finite) {
    throw KvError(KvErrorCode::ValueInvalid, std::string("a value of ") + (kind == Kind::K ? "K" : "V") +
                                                 " is NaN, infinite or beyond 65504");
  }
}

}  // namespace

void StageBuffer::put_plain(const uint8_t* bytes, WireType type, Kind kind, uint32_t rows, uint8_t* target) {
  convert_rows(geometry_, kind, type, bytes, rows, target);
}

void StageBuffer::put_transposed(const uint8_t* bytes, WireType type, uint32_t rows, uint32_t first_row,
                                 uint32_t cells, uint8_t* target) {
  const size_t row_bytes = geometry_.wire_row_bytes();
  const size_t column_bytes = static_cast<size_t>(cells) * sizeof(uint16_t);
  half_rows_.resize(kBlockRows * geometry_.row_elements());
  auto* converted = reinterpret_cast<uint8_t*>(half_rows_.data());
  for (uint32_t row = 0; row < rows; row += kBlockRows) {
    const uint32_t count = std::min(kBlockRows, rows - row);
    convert_rows(geometry_, Kind::V, type, bytes + row * row_bytes, count, converted);
    kernels().transpose_u16(converted, row_bytes, target + (first_row + row) * sizeof(uint16_t), column_bytes, count,
                            geometry_.row_elements());
  }
}

void StageBuffer::put_quantized(const uint8_t* bytes, WireType type, Kind kind, uint32_t rows, uint8_t* target) {
  const Kernels& run = kernels();
  const size_t row_bytes = geometry_.wire_row_bytes();
  const uint32_t rotation = kind == Kind::K ? form_.k_rotation : form_.v_rotation;
  half_rows_.resize(kBlockRows * geometry_.row_elements());
  float_rows_.resize(half_rows_.size());
  auto* converted = reinterpret_cast<uint8_t*>(half_rows_.data());
  for (uint32_t row = 0; row < rows; row += kBlockRows) {
    const uint32_t count = std::min(kBlockRows, rows - row);
    const size_t elements = count * geometry_.row_elements();
    convert_rows(geometry_, kind, type, bytes + row * row_bytes, count, converted);
    run.f16_to_f32(converted, float_rows_.data(), elements);
    if (rotation > 0) run.hadamard(float_rows_.data(), elements, rotation);
    run.quantize_q8_0(float_rows_.data(), target + row * form_.row_bytes, elements);
  }
}

std::span<const uint8_t> StageBuffer::state(int32_t seq_id) {
  if (!complete()) {
    throw KvError(KvErrorCode::Sequence, std::to_string(missing_rows_) + " rows of the chunk " +
                                             to_string(tokens_) + " are missing");
  }
  uint8_t* state = state_.data();
  store<int32_t>(state + 4, seq_id);
  for (const auto& cache : layout_.caches()) {
    for (uint32_t cell = 0; cell < cache.cells; ++cell) {
      store<int32_t>(state + cache.cell_records + cell * kCellBytes + 8, seq_id);
    }
  }
  return {state, layout_.size()};
}

}  // namespace muser::kv
