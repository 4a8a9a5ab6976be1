#include "state_reader.h"

namespace muser::kv {

void StateBytes::throw_short(size_t offset) const {
  throw KvError(KvErrorCode::StateForm, "sequence state: " + std::to_string(size_) + " bytes, a field at offset " +
                                            std::to_string(offset) + " lies beyond them");
}

void expect_field(const std::string& field, uint64_t found, uint64_t expected) {
  if (found == expected) return;
  throw KvError(KvErrorCode::StateForm, "sequence state: " + field + " is " + std::to_string(found) + ", expected " +
                                            std::to_string(expected));
}

uint32_t cell_count_at(const StateBytes& state, size_t offset) {
  expect_field("stream count", state.at<uint32_t>(offset), 1);
  return state.at<uint32_t>(offset + sizeof(uint32_t));
}

void check_cache_headers(const StateBytes& state, const StateLayout& layout, const StateLayout::Cache& cache,
                         const StateForm& form, const Geometry& geometry) {
  if (cache.cells == 0) return;
  expect_field("V transposed", state.at<uint32_t>(cache.data), form.v_transposed ? 1 : 0);
  expect_field("layer count", state.at<uint32_t>(cache.data + sizeof(uint32_t)), cache.layers);
  for (const Kind kind : {Kind::K, Kind::V}) {
    for (uint32_t index = 0; index < cache.layers; ++index) {
      const size_t header = layout.tensor_at(cache, index, kind);
      expect_field("cache type", static_cast<uint32_t>(state.at<int32_t>(header)),
                   static_cast<uint32_t>(form.type_id));
      if (kind == Kind::V && form.v_transposed) {
        expect_field("V element bytes", state.at<uint32_t>(header + 4), sizeof(uint16_t));
        expect_field("V row elements", state.at<uint32_t>(header + 8), geometry.row_elements());
      } else {
        expect_field("row bytes", state.at<uint64_t>(header + 4), form.row_bytes);
      }
    }
  }
}

std::vector<int32_t> cell_positions(const StateBytes& state, const StateLayout::Cache& cache, int32_t sequence) {
  std::vector<int32_t> positions(cache.cells);
  for (uint32_t cell = 0; cell < cache.cells; ++cell) {
    const size_t record = cache.cell_records + cell * kCellBytes;
    positions[cell] = state.at<int32_t>(record);
    // Models with image positions or token ids in their cells have longer records, which fail here.
    expect_field("sequence ids of a cell", state.at<uint32_t>(record + 4), 1);
    expect_field("sequence id of a cell", static_cast<uint32_t>(state.at<int32_t>(record + 8)),
                 static_cast<uint32_t>(sequence));
    if (positions[cell] < 0) {
      throw KvError(KvErrorCode::StateForm, "sequence state: a cell at position " + std::to_string(positions[cell]));
    }
  }
  return positions;
}

StateLayout read_layout(const StateBytes& state, const StateForm& form, const Geometry& geometry) {
  expect_field("magic", state.at<uint32_t>(0), form.magic);
  const uint32_t global_cells = cell_count_at(state, kStateHeaderBytes);
  uint32_t window_cells = 0;
  if (geometry.has_window()) {
    const StateLayout global_part(geometry, form, global_cells, 0);
    window_cells = cell_count_at(state, global_part.caches().back().begin);
  }
  StateLayout layout(geometry, form, global_cells, window_cells);
  expect_field("size", state.size(), layout.size());
  for (const auto& cache : layout.caches()) check_cache_headers(state, layout, cache, form, geometry);
  return layout;
}

}  // namespace muser::kv
