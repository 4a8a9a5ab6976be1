#pragma once

#include "convert.h"

namespace muser::kv {

/// Null where the build or the CPU does not have them.
const Kernels* avx2_kernels();
const Kernels* neon_kernels();

}  // namespace muser::kv
