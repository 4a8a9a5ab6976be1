#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace muser::kv {

enum class LayerKind : uint8_t { Global, Window };
enum class Kind : uint8_t { K, V };
enum class WireType : uint8_t { F16, BF16 };
enum class CacheType : uint8_t { F16, Q8_0 };

/// A stretch of tokens [start, end), in positions of the sequence.
struct TokenRange {
  uint32_t start = 0;
  uint32_t end = 0;

  uint32_t count() const { return end - start; }
  bool empty() const { return start == end; }
  bool contains(TokenRange other) const { return other.start >= start && other.end <= end; }
};

/// "[start, end)", for messages.
std::string to_string(TokenRange range);

/// What a model's KV looks like. `kv_heads` and `head_dim` hold for K and V of every layer. Without layers it stands for
/// a cache of another kind, of which no row can be taken out or put in.
struct Geometry {
  std::vector<LayerKind> layers;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window = 0;         ///< Tokens that a window layer sees, itself included; 0 without window layers.
  bool k_interleaved = false;  ///< llama.cpp holds K rotary pairs side by side (rope type NORM).

  /// Elements in one row: one token of K or of V in one layer.
  size_t row_elements() const { return static_cast<size_t>(kv_heads) * head_dim; }
  /// Bytes of one row on the wire (f16 and bf16 take the same).
  size_t wire_row_bytes() const { return row_elements() * 2; }
  bool known() const { return !layers.empty(); }
  size_t layers_of(LayerKind kind) const;
  bool has_window() const { return layers_of(LayerKind::Window) > 0; }

  /// Throws Range when a member is out of bounds or they contradict one another.
  void check() const;
};

}  // namespace muser::kv
