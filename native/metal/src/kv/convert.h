#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muser::kv {

constexpr size_t kQ8BlockElements = 32;
constexpr size_t kQ8BlockBytes = 34;  ///< f16 scale, then 32 signed bytes.

/// The conversions, once in plain C++ (the reference) and once for the CPU at hand. Both give the same bits.
/// Buffers are bytes because wire data starts at any address; `elements`, `heads`, `head_dim` count elements.
/// The functions that return bool convert everything and return false when a result is not finite in f16 (input NaN,
/// infinity, or beyond 65,504 after rounding to nearest even).
struct Kernels {
  const char* name;

  bool (*f16_to_f16)(const uint8_t* in, uint8_t* out, size_t elements);
  bool (*bf16_to_f16)(const uint8_t* in, uint8_t* out, size_t elements);
  /// Half-split to interleaved, head by head: in[j] -> out[2j], in[j + D/2] -> out[2j + 1].
  bool (*f16_interleave)(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim);
  bool (*bf16_interleave)(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim);
  /// Interleaved to half-split, the inverse.
  bool (*f16_deinterleave)(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim);

  void (*f16_to_f32)(const uint8_t* in, float* out, size_t elements);
  bool (*f32_to_f16)(const float* in, uint8_t* out, size_t elements);

  /// Normalised Walsh-Hadamard transform of each block, in place; its own inverse. `block` is a power of two.
  void (*hadamard)(float* values, size_t elements, size_t block);
  /// As ggml's quantize_row_q8_0_ref; `elements` is a multiple of 32.
  void (*quantize_q8_0)(const float* in, uint8_t* out, size_t elements);
  void (*dequantize_q8_0)(const uint8_t* in, float* out, size_t elements);

  /// out[column][row] = in[row][column] for 16-bit elements; strides in bytes.
  void (*transpose_u16)(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows,
                        size_t columns);
};

/// Plain C++. The other set is tested against it bit for bit.
const Kernels& reference_kernels();
/// The fastest set that this CPU runs (AVX2 with F16C, NEON, or the reference).
const Kernels& kernels();

/// Where a paged cache keeps the rows of one layer's K or V: block `table[t / block_tokens]`, strides in bytes.
struct PagedRows {
  const uint8_t* base;
  size_t size;  ///< Bytes from `base` that may be read.
  std::vector<uint32_t> table;
  uint32_t block_tokens;
  uint64_t block_stride;
  uint64_t token_stride;
  uint64_t head_stride;
  uint32_t heads;
  uint32_t head_bytes;
};

/// Gathers rows [token_start, token_start + token_count) to `out`, token-major, heads side by side; returns the bytes
/// written. Throws Range when a row lies outside the table or the memory, or `capacity` is too small.
size_t gather_paged_rows(const PagedRows& source, uint32_t token_start, uint32_t token_count, uint8_t* out,
                         size_t capacity);

}  // namespace muser::kv
