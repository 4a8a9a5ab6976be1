#include "convert.h"

#include <cstring>
#include <string>

#include "error.h"
#include "kernels_internal.h"

namespace muser::kv {

const Kernels& kernels() {
  static const Kernels& fastest = []() -> const Kernels& {
    if (const Kernels* avx2 = avx2_kernels()) return *avx2;
    if (const Kernels* neon = neon_kernels()) return *neon;
    return reference_kernels();
  }();
  return fastest;
}

namespace {

[[noreturn]] void throw_outside(uint32_t token) {
  throw KvError(KvErrorCode::Range, "paged rows: token " + std::to_string(token) + " lies outside the cache's memory");
}

/// Offset of a token's first head; checks that all of its heads lie inside.
size_t row_offset(const PagedRows& source, uint32_t token) {
  const size_t place = token / source.block_tokens;
  if (place >= source.table.size()) {
    throw KvError(KvErrorCode::Range, "paged rows: token " + std::to_string(token) + " needs block " +
                                          std::to_string(place) + " of a table of " +
                                          std::to_string(source.table.size()));
  }
  uint64_t block = 0;
  uint64_t inside = 0;
  uint64_t heads = 0;
  uint64_t offset = 0;
  uint64_t end = 0;
  const bool overflow = __builtin_mul_overflow(source.block_stride, source.table[place], &block) ||
                        __builtin_mul_overflow(source.token_stride, token % source.block_tokens, &inside) ||
                        __builtin_mul_overflow(source.head_stride, source.heads - 1, &heads) ||
                        __builtin_add_overflow(block, inside, &offset) ||
                        __builtin_add_overflow(offset, heads, &end) ||
                        __builtin_add_overflow(end, source.head_bytes, &end);
  if (overflow || end > source.size) throw_outside(token);
  return offset;
}

}  // namespace

size_t gather_paged_rows(const PagedRows& source, uint32_t token_start, uint32_t token_count, uint8_t* out,
                         size_t capacity) {
  if (source.block_tokens == 0 || source.heads == 0 || source.head_bytes == 0) {
    throw KvError(KvErrorCode::Range, "paged rows: blocks of " + std::to_string(source.block_tokens) + " tokens, " +
                                          std::to_string(source.heads) + " heads of " +
                                          std::to_string(source.head_bytes) + " bytes");
  }
  const size_t row_bytes = static_cast<size_t>(source.heads) * source.head_bytes;
  if (token_count > UINT32_MAX - token_start || capacity / row_bytes < token_count) {
    throw KvError(KvErrorCode::Range, "paged rows: " + std::to_string(token_count) + " rows from " +
                                          std::to_string(token_start) + " of " + std::to_string(row_bytes) +
                                          " bytes do not fit into " + std::to_string(capacity));
  }
  const bool heads_touch = source.head_stride == source.head_bytes;
  for (uint32_t token = token_start; token < token_start + token_count; ++token, out += row_bytes) {
    const uint8_t* row = source.base + row_offset(source, token);
    if (heads_touch) {
      std::memcpy(out, row, row_bytes);
      continue;
    }
    for (uint32_t head = 0; head < source.heads; ++head) {
      std::memcpy(out + static_cast<size_t>(head) * source.head_bytes, row + head * source.head_stride,
                  source.head_bytes);
    }
  }
  return token_count * row_bytes;
}

}  // namespace muser::kv
