#pragma once

#include <cstdint>
#include <vector>

namespace muser {

/// K of one token in one layer, half-split per head, when it stands at a position and nothing stands before it.
struct KeyAt {
  uint32_t position;
  std::vector<float> elements;
};

enum class Turn : uint8_t {
  None,   ///< K is the same at every position
  Rope,   ///< every head turns as plain RoPE of the given base says, all of it
  Other,  ///< neither: scaled, partial, of other pairs, of another base, or changed after RoPE
};

/// Compares what a layer does to K with what RoPE of `base` would do. The first key stands at position 0, where RoPE
/// does nothing; the others at positions of which at least one is not 0.
Turn turn_of(const std::vector<KeyAt>& keys, uint32_t head_dim, double base);

}  // namespace muser
