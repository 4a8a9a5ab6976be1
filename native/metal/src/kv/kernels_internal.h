#pragma once

#include "convert.h"

namespace muser::kv {

/// Below it the inverse would not be finite. ggml divides all the same, but its f16 scale is 0 then, so that the values
/// do not count.
constexpr float kQ8SmallestScale = 0x1p-126f;

/// Null where the build or the CPU does not have them.
const Kernels* avx2_kernels();
const Kernels* neon_kernels();

}  // namespace muser::kv
