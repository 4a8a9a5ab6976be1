#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "geometry.h"

namespace muser::kv {

/// Writes sequence states in llama.cpp's form, independently of the code under test. The value of an element tells
/// where it belongs, so that a test sees every mix-up.
struct SyntheticState {
  Geometry geometry;
  bool v_transposed = false;
  int32_t sequence = 3;
  uint32_t magic = 0xaf143cd8;
  uint32_t streams = 1;
  int32_t type = 1;
  size_t extra_cell_bytes = 0;
  std::vector<int32_t> global_positions;
  std::vector<int32_t> window_positions;

  /// In cache order. A finite f16 for any arguments below 16 layers, 512 positions, 64 elements.
  static uint16_t value(uint32_t layer, Kind kind, uint32_t position, uint32_t element) {
    const uint32_t mixed = layer * 7919 + (kind == Kind::V ? 104729 : 0) + position * 131 + element * 31;
    return static_cast<uint16_t>(mixed % 0x7bff);
  }

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> out;
    add(out, magic);
    add(out, sequence);
    add_cache(out, LayerKind::Global, global_positions);
    if (geometry.has_window()) add_cache(out, LayerKind::Window, window_positions);
    return out;
  }

  std::vector<uint8_t> window_bytes() const {
    std::vector<uint8_t> out;
    add(out, magic);
    add(out, sequence);
    add_cache(out, LayerKind::Window, window_positions);
    return out;
  }

 private:
  template <typename T>
  static void add(std::vector<uint8_t>& out, T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(T));
  }

  void add_cache(std::vector<uint8_t>& out, LayerKind kind, const std::vector<int32_t>& positions) const {
    add(out, streams);
    add(out, static_cast<uint32_t>(positions.size()));
    if (positions.empty()) return;
    for (const int32_t position : positions) {
      add(out, position);
      add(out, uint32_t{1});
      out.insert(out.end(), extra_cell_bytes, 0);
      add(out, sequence);
    }
    add(out, uint32_t{v_transposed});
    add(out, static_cast<uint32_t>(geometry.layers_of(kind)));
    for (const Kind part : {Kind::K, Kind::V}) {
      for (uint32_t layer = 0; layer < geometry.layers.size(); ++layer) {
        if (geometry.layers[layer] == kind) add_tensor(out, layer, part, positions);
      }
    }
  }

  void add_tensor(std::vector<uint8_t>& out, uint32_t layer, Kind part, const std::vector<int32_t>& positions) const {
    const auto elements = static_cast<uint32_t>(geometry.row_elements());
    add(out, type);
    if (part == Kind::V && v_transposed) {
      add(out, uint32_t{2});
      add(out, elements);
      for (uint32_t element = 0; element < elements; ++element) {
        for (const int32_t position : positions) {
          add(out, value(layer, part, static_cast<uint32_t>(position), element));
        }
      }
      return;
    }
    add(out, uint64_t{2 * elements});
    for (const int32_t position : positions) {
      for (uint32_t element = 0; element < elements; ++element) {
        add(out, value(layer, part, static_cast<uint32_t>(position), element));
      }
    }
  }
};

}  // namespace muser::kv
