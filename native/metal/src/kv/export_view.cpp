#include "export_view.h"

#include <algorithm>
#include <string>

#include "convert.h"
#include "state_reader.h"

namespace muser::kv {

namespace {

constexpr uint32_t kBlockRows = 32;
constexpr uint32_t kNoCell = UINT32_MAX;

const char* name_of(LayerKind kind) { return kind == LayerKind::Global ? "global" : "window"; }

/// Which cell holds each row of `wanted`. Every cell must lie in `allowed`; no position may come twice.
std::vector<uint32_t> map_cells(const StateBytes& state, const StateLayout::Cache& cache, TokenRange allowed,
                                TokenRange wanted) {
  const auto sequence = state.at<int32_t>(sizeof(uint32_t));
  const std::vector<int32_t> positions = cell_positions(state, cache, sequence);
  std::vector<uint32_t> cells(allowed.count(), kNoCell);
  for (uint32_t cell = 0; cell < positions.size(); ++cell) {
    const auto position = static_cast<uint32_t>(positions[cell]);
    if (!allowed.contains({position, position + 1})) {
      throw KvError(KvErrorCode::Sequence, "the state has a " + std::string(name_of(cache.kind)) + " row " +
                                               std::to_string(position) + " outside " + to_string(allowed));
    }
    uint32_t& slot = cells[position - allowed.start];
    if (slot != kNoCell) {
      throw KvError(KvErrorCode::Sequence, "the state has the " + std::string(name_of(cache.kind)) + " row " +
                                               std::to_string(position) + " twice");
    }
    slot = cell;
  }
  cells.erase(cells.begin(), cells.begin() + (wanted.start - allowed.start));
  const auto missing = std::find(cells.begin(), cells.end(), kNoCell);
  if (missing != cells.end()) {
    throw KvError(KvErrorCode::Sequence, "the state lacks the " + std::string(name_of(cache.kind)) + " row " +
                                             std::to_string(wanted.start + (missing - cells.begin())) + " of " +
                                             to_string(wanted));
  }
  return cells;
}

const Geometry& checked(const Geometry& geometry, TokenRange tokens, uint32_t window_start) {
  geometry.check();
  if (tokens.start >= tokens.end || window_start < tokens.start || window_start > tokens.end) {
    throw KvError(KvErrorCode::Range,
                  "an export of " + to_string(tokens) + " with window rows from " + std::to_string(window_start));
  }
  return geometry;
}

StateMemory copied(const std::vector<uint8_t>& state) {
  StateMemory memory(state.size());
  std::copy(state.begin(), state.end(), memory.data());
  return memory;
}

}  // namespace

/// One layer's K or V in the state.
struct ExportView::Source {
  const uint8_t* rows;
  uint32_t cells;  ///< Of the whole cache, which is the stride of a transposed V.
};

ExportView::ExportView(const Geometry& geometry, const StateForm& form, const std::vector<uint8_t>& state,
                       uint32_t start, uint32_t end, uint32_t window_start)
    : ExportView(geometry, form, copied(state), start, end, window_start) {}

ExportView::ExportView(const Geometry& geometry, const StateForm& form, StateMemory state, uint32_t start,
                       uint32_t end, uint32_t window_start)
    : geometry_(checked(geometry, {start, end}, window_start)),
      form_(form),
      state_(std::move(state)),
      tokens_{start, end},
      window_start_(window_start),
      layout_(read_layout(StateBytes(state_.data(), state_.size()), form_, geometry_)) {
  const StateBytes bytes(state_.data(), state_.size());
  for (const auto& cache : layout_.caches()) {
    const bool is_window = cache.kind == LayerKind::Window;
    auto& cells = is_window ? window_cells_ : global_cells_;
    cells = map_cells(bytes, cache, tokens_, {is_window ? window_start : start, end});
  }
}

size_t ExportView::read(uint32_t layer, Kind kind, uint32_t token_start, uint32_t token_count, uint8_t* out,
                        size_t capacity) const {
  if (layer >= geometry_.layers.size()) {
    throw KvError(KvErrorCode::Range, "layer " + std::to_string(layer) + " of " +
                                          std::to_string(geometry_.layers.size()));
  }
  const bool is_window = geometry_.layers[layer] == LayerKind::Window;
  const TokenRange rows{is_window ? window_start_ : tokens_.start, tokens_.end};
  const TokenRange range{token_start, token_start + token_count};
  if (token_count == 0 || range.end < range.start || !rows.contains(range)) {
    throw KvError(KvErrorCode::Range, std::to_string(token_count) + " rows from " + std::to_string(token_start) +
                                          " of layer " + std::to_string(layer) + " lie outside " + to_string(rows));
  }
  const size_t row_bytes = geometry_.wire_row_bytes();
  if (capacity / row_bytes < token_count) {
    throw KvError(KvErrorCode::Range, std::to_string(capacity) + " bytes are too few for " +
                                          std::to_string(token_count) + " rows of " + std::to_string(row_bytes) +
                                          " bytes");
  }

  const auto& cells = is_window ? window_cells_ : global_cells_;
  const Source source{state_.data() + layout_.rows(layer, kind), layout_.cache_of(layer).cells};
  const uint32_t first = range.start - rows.start;
  for (uint32_t row = 0; row < token_count;) {
    // Rows in neighbouring cells are converted together.
    uint32_t run = 1;
    while (row + run < token_count && cells[first + row + run] == cells[first + row] + run) ++run;
    read_run(source, kind, cells[first + row], run, out + row * row_bytes);
    row += run;
  }
  return token_count * row_bytes;
}

void ExportView::read_run(const Source& source, Kind kind, uint32_t cell, uint32_t rows, uint8_t* out) const {
  const Kernels& run = kernels();
  const size_t elements = geometry_.row_elements();
  const size_t row_bytes = geometry_.wire_row_bytes();
  const bool deinterleave = kind == Kind::K && geometry_.k_interleaved;
  const uint32_t rotation = kind == Kind::K ? form_.k_rotation : form_.v_rotation;
  std::vector<float> floats(form_.type == CacheType::Q8_0 ? kBlockRows * elements : 0);
  std::vector<uint16_t> halves(kBlockRows * elements);
  auto* plain = reinterpret_cast<uint8_t*>(halves.data());

  for (uint32_t row = 0; row < rows; row += kBlockRows) {
    const uint32_t count = std::min(kBlockRows, rows - row);
    const uint8_t* in = source.rows + (static_cast<size_t>(cell) + row) * form_.row_bytes;
    bool finite = true;
    if (form_.type == CacheType::Q8_0) {
      run.dequantize_q8_0(in, floats.data(), count * elements);
      if (rotation > 0) run.hadamard(floats.data(), count * elements, rotation);
      finite = run.f32_to_f16(floats.data(), plain, count * elements);
      in = plain;
    } else if (kind == Kind::V && form_.v_transposed) {
      run.transpose_u16(source.rows + (static_cast<size_t>(cell) + row) * sizeof(uint16_t),
                        static_cast<size_t>(source.cells) * sizeof(uint16_t), plain, row_bytes, elements, count);
      in = plain;
    }
    uint8_t* target = out + row * row_bytes;
    const size_t heads = static_cast<size_t>(count) * geometry_.kv_heads;
    finite &= deinterleave ? run.f16_deinterleave(in, target, heads, geometry_.head_dim)
                           : run.f16_to_f16(in, target, count * elements);
    if (!finite) {
      throw KvError(KvErrorCode::ValueInvalid, std::string("the cache holds a value of ") +
                                                   (kind == Kind::K ? "K" : "V") + " that f16 cannot carry");
    }
  }
}

TokenRange window_rows_in(const Geometry& geometry, const StateForm& form, const std::vector<uint8_t>& partial_state) {
  geometry.check();
  const StateBytes bytes(partial_state.data(), partial_state.size());
  expect_field("magic", bytes.at<uint32_t>(0), form.magic);
  const uint32_t cells = cell_count_at(bytes, kStateHeaderBytes);
  const StateLayout layout = StateLayout::window_only(geometry, form, cells);
  expect_field("size", bytes.size(), layout.size());
  const StateLayout::Cache& cache = layout.caches().front();
  check_cache_headers(bytes, layout, cache, form, geometry);
  std::vector<int32_t> positions = cell_positions(bytes, cache, bytes.at<int32_t>(sizeof(uint32_t)));
  if (positions.empty()) return {};
  std::sort(positions.begin(), positions.end());
  size_t first = positions.size() - 1;
  while (first > 0 && positions[first - 1] == positions[first] - 1) --first;
  return {static_cast<uint32_t>(positions[first]), static_cast<uint32_t>(positions.back()) + 1};
}

}  // namespace muser::kv
