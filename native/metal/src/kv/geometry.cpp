#include "geometry.h"

#include <algorithm>

namespace muser::kv {

namespace {

constexpr size_t kMaxLayers = 1024;
constexpr uint32_t kMaxHeads = 1024;
constexpr uint32_t kMaxHeadDim = 4096;
constexpr uint32_t kMaxWindow = 1u << 24;

void require(bool holds, const std::string& what) {
  if (!holds) throw KvError(KvErrorCode::Range, "KV geometry: " + what);
}

}  // namespace

std::string to_string(TokenRange range) {
  std::string text = "[";
  text += std::to_string(range.start);
  text += ", ";
  text += std::to_string(range.end);
  text += ")";
  return text;
}

size_t Geometry::layers_of(LayerKind kind) const {
  return static_cast<size_t>(std::count(layers.begin(), layers.end(), kind));
}

void Geometry::check() const {
  require(!layers.empty() && layers.size() <= kMaxLayers, std::to_string(layers.size()) + " layers, 1 to 1024 allowed");
  require(kv_heads >= 1 && kv_heads <= kMaxHeads, std::to_string(kv_heads) + " KV heads, 1 to 1024 allowed");
  require(head_dim >= 2 && head_dim <= kMaxHeadDim && head_dim % 2 == 0,
          "head dimension " + std::to_string(head_dim) + ", even numbers from 2 to 4096 allowed");
  require(window <= kMaxWindow, "window of " + std::to_string(window) + " tokens, at most 2^24 allowed");
  require(has_window() == (window > 0), "a window of " + std::to_string(window) + " tokens with " +
                                            std::to_string(layers_of(LayerKind::Window)) + " window layers");
}

}  // namespace muser::kv
