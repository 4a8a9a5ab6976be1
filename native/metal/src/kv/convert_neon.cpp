#include "kernels_internal.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cmath>

namespace muser::kv {

namespace {

constexpr size_t kLanes = 8;  ///< 16-bit elements in a register.

inline uint16x8_t load_u16(const uint8_t* in) { return vreinterpretq_u16_u8(vld1q_u8(in)); }

inline void store_u16(uint8_t* out, uint16x8_t values) { vst1q_u8(out, vreinterpretq_u8_u16(values)); }

/// Remembers whether any f16 seen was NaN or infinite.
struct FiniteCheck {
  uint16x8_t seen = vdupq_n_u16(0);

  void look(uint16x8_t halves) {
    const uint16x8_t exponent = vdupq_n_u16(0x7c00);
    seen = vorrq_u16(seen, vceqq_u16(vandq_u16(halves, exponent), exponent));
  }
  bool finite() const { return vmaxvq_u16(seen) == 0; }
};

/// Eight bf16 to f16.
inline uint16x8_t bf16_as_f16(uint16x8_t bits) {
  const float32x4_t low = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16));
  const float32x4_t high = vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16));
  return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high));
}

template <bool FromBf16>
inline uint16x8_t as_f16(uint16x8_t bits) {
  if constexpr (FromBf16) {
    return bf16_as_f16(bits);
  } else {
    return bits;
  }
}

template <bool FromBf16>
bool convert_elements(const uint8_t* in, uint8_t* out, size_t elements) {
  FiniteCheck check;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const uint16x8_t halves = as_f16<FromBf16>(load_u16(in + 2 * i));
    check.look(halves);
    store_u16(out + 2 * i, halves);
  }
  const Kernels& reference = reference_kernels();
  const auto rest = FromBf16 ? reference.bf16_to_f16 : reference.f16_to_f16;
  return rest(in + 2 * i, out + 2 * i, elements - i) && check.finite();
}

template <bool FromBf16>
bool interleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  const size_t half = head_dim / 2;
  if (half % kLanes != 0) {
    const Kernels& reference = reference_kernels();
    return (FromBf16 ? reference.bf16_interleave : reference.f16_interleave)(in, out, heads, head_dim);
  }
  FiniteCheck check;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; j += kLanes) {
      const uint16x8_t first = as_f16<FromBf16>(load_u16(in + 2 * j));
      const uint16x8_t second = as_f16<FromBf16>(load_u16(in + 2 * (j + half)));
      check.look(first);
      check.look(second);
      store_u16(out + 4 * j, vzip1q_u16(first, second));
      store_u16(out + 4 * j + 16, vzip2q_u16(first, second));
    }
  }
  return check.finite();
}

bool deinterleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  const size_t half = head_dim / 2;
  if (half % kLanes != 0) return reference_kernels().f16_deinterleave(in, out, heads, head_dim);
  FiniteCheck check;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; j += kLanes) {
      const uint16x8_t first = load_u16(in + 4 * j);
      const uint16x8_t second = load_u16(in + 4 * j + 16);
      check.look(first);
      check.look(second);
      store_u16(out + 2 * j, vuzp1q_u16(first, second));
      store_u16(out + 2 * (j + half), vuzp2q_u16(first, second));
    }
  }
  return check.finite();
}

void f16_to_f32(const uint8_t* in, float* out, size_t elements) {
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const float16x8_t halves = vreinterpretq_f16_u16(load_u16(in + 2 * i));
    vst1q_f32(out + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(out + i + 4, vcvt_high_f32_f16(halves));
  }
  reference_kernels().f16_to_f32(in + 2 * i, out + i, elements - i);
}

bool f32_to_f16(const float* in, uint8_t* out, size_t elements) {
  FiniteCheck check;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(in + i));
    const uint16x8_t halves = vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(in + i + 4)));
    check.look(halves);
    store_u16(out + 2 * i, halves);
  }
  return reference_kernels().f32_to_f16(in + i, out + 2 * i, elements - i) && check.finite();
}

/// The transform's steps with strides 1 and 2, which stay inside a register.
inline float32x4_t hadamard4(float32x4_t values) {
  // trn puts the left elements of all pairs in one register and the right ones in another.
  float32x4_t left = vtrn1q_f32(values, values);
  float32x4_t right = vtrn2q_f32(values, values);
  values = vtrn1q_f32(vaddq_f32(left, right), vsubq_f32(left, right));
  left = vcombine_f32(vget_low_f32(values), vget_low_f32(values));
  right = vcombine_f32(vget_high_f32(values), vget_high_f32(values));
  return vcombine_f32(vget_low_f32(vaddq_f32(left, right)), vget_low_f32(vsubq_f32(left, right)));
}

void hadamard(float* values, size_t elements, size_t block) {
  if (block < 4) {
    reference_kernels().hadamard(values, elements, block);
    return;
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (float* start = values; start < values + elements; start += block) {
    for (size_t i = 0; i < block; i += 4) vst1q_f32(start + i, hadamard4(vld1q_f32(start + i)));
    for (size_t stride = 4; stride < block; stride *= 2) {
      for (size_t base = 0; base < block; base += 2 * stride) {
        for (size_t i = base; i < base + stride; i += 4) {
          const float32x4_t left = vld1q_f32(start + i);
          const float32x4_t right = vld1q_f32(start + i + stride);
          vst1q_f32(start + i, vaddq_f32(left, right));
          vst1q_f32(start + i + stride, vsubq_f32(left, right));
        }
      }
    }
    for (size_t i = 0; i < block; i += 4) vst1q_f32(start + i, vmulq_n_f32(vld1q_f32(start + i), scale));
  }
}

void quantize_q8_0(const float* in, uint8_t* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, out += kQ8BlockBytes) {
    float32x4_t largest = vdupq_n_f32(0.0f);
    for (size_t i = 0; i < kQ8BlockElements; i += 4) {
      largest = vmaxq_f32(largest, vabsq_f32(vld1q_f32(in + start + i)));
    }
    const float scale = vmaxvq_f32(largest) / 127.0f;
    const float inverse = scale >= kQ8SmallestScale ? 1.0f / scale : 0.0f;
    const float16_t scale_half = static_cast<float16_t>(scale);
    __builtin_memcpy(out, &scale_half, sizeof(scale_half));
    for (size_t i = 0; i < kQ8BlockElements; i += 8) {
      // vcvta rounds halves away from zero, as std::round does.
      const int32x4_t low = vcvtaq_s32_f32(vmulq_n_f32(vld1q_f32(in + start + i), inverse));
      const int32x4_t high = vcvtaq_s32_f32(vmulq_n_f32(vld1q_f32(in + start + i + 4), inverse));
      const int16x8_t both = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
      vst1_s8(reinterpret_cast<int8_t*>(out + 2 + i), vmovn_s16(both));
    }
  }
}

void dequantize_q8_0(const uint8_t* in, float* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, in += kQ8BlockBytes) {
    float16_t scale_half = 0;
    __builtin_memcpy(&scale_half, in, sizeof(scale_half));
    const float scale = static_cast<float>(scale_half);
    for (size_t i = 0; i < kQ8BlockElements; i += 8) {
      const int16x8_t integers = vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(in + 2 + i)));
      vst1q_f32(out + start + i, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(integers))), scale));
      vst1q_f32(out + start + i + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(integers)), scale));
    }
  }
}

void transpose8x8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  uint16x8_t row[8];
  for (size_t i = 0; i < 8; ++i) row[i] = load_u16(in + i * in_stride);
  // pair[2i], pair[2i + 1]: the even and the odd columns of rows 2i and 2i + 1.
  uint32x4_t pair[8];
  for (size_t i = 0; i < 8; i += 2) {
    pair[i] = vreinterpretq_u32_u16(vtrn1q_u16(row[i], row[i + 1]));
    pair[i + 1] = vreinterpretq_u32_u16(vtrn2q_u16(row[i], row[i + 1]));
  }
  // quad[c], c < 4: columns c and c + 4 of rows 0 to 3; quad[4 + c]: the same of rows 4 to 7.
  uint64x2_t quad[8];
  for (size_t i = 0; i < 8; i += 4) {
    quad[i] = vreinterpretq_u64_u32(vtrn1q_u32(pair[i], pair[i + 2]));
    quad[i + 1] = vreinterpretq_u64_u32(vtrn1q_u32(pair[i + 1], pair[i + 3]));
    quad[i + 2] = vreinterpretq_u64_u32(vtrn2q_u32(pair[i], pair[i + 2]));
    quad[i + 3] = vreinterpretq_u64_u32(vtrn2q_u32(pair[i + 1], pair[i + 3]));
  }
  for (size_t column = 0; column < 4; ++column) {
    store_u16(out + column * out_stride, vreinterpretq_u16_u64(vtrn1q_u64(quad[column], quad[4 + column])));
    store_u16(out + (column + 4) * out_stride, vreinterpretq_u16_u64(vtrn2q_u64(quad[column], quad[4 + column])));
  }
}

void transpose_u16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows, size_t columns) {
  const size_t even_rows = rows - rows % 8;
  const size_t even_columns = columns - columns % 8;
  for (size_t column = 0; column < even_columns; column += 8) {
    for (size_t row = 0; row < even_rows; row += 8) {
      transpose8x8(in + row * in_stride + 2 * column, in_stride, out + column * out_stride + 2 * row, out_stride);
    }
  }
  const auto rest = reference_kernels().transpose_u16;
  rest(in + 2 * even_columns, in_stride, out + even_columns * out_stride, out_stride, rows, columns - even_columns);
  rest(in + even_rows * in_stride, in_stride, out + 2 * even_rows, out_stride, rows - even_rows, even_columns);
}

}  // namespace

const Kernels* neon_kernels() {
  static const Kernels table{
      .name = "neon",
      .f16_to_f16 = convert_elements<false>,
      .bf16_to_f16 = convert_elements<true>,
      .f16_interleave = interleave<false>,
      .bf16_interleave = interleave<true>,
      .f16_deinterleave = deinterleave,
      .f16_to_f32 = f16_to_f32,
      .f32_to_f16 = f32_to_f16,
      .hadamard = hadamard,
      .quantize_q8_0 = quantize_q8_0,
      .dequantize_q8_0 = dequantize_q8_0,
      .transpose_u16 = transpose_u16,
  };
  return &table;
}

}  // namespace muser::kv

#else

namespace muser::kv {

const Kernels* neon_kernels() { return nullptr; }

}  // namespace muser::kv

#endif
