#include "kernels_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cmath>

#define MUSER_AVX2 __attribute__((target("avx2,f16c")))

namespace muser::kv {

namespace {

constexpr size_t kLanes = 16;  ///< 16-bit elements in a register.

MUSER_AVX2 inline __m256i load_u16(const uint8_t* in) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
}

MUSER_AVX2 inline void store_u16(uint8_t* out, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), values);
}

/// Remembers whether any f16 seen was NaN or infinite.
struct FiniteCheck {
  __m256i seen;

  MUSER_AVX2 FiniteCheck() : seen(_mm256_setzero_si256()) {}
  MUSER_AVX2 void look(__m256i halves) {
    const __m256i exponent = _mm256_set1_epi16(0x7c00);
    seen = _mm256_or_si256(seen, _mm256_cmpeq_epi16(_mm256_and_si256(halves, exponent), exponent));
  }
  MUSER_AVX2 bool finite() const { return _mm256_testz_si256(seen, seen) != 0; }
};

/// Sixteen bf16 to f16.
MUSER_AVX2 inline __m256i bf16_as_f16(__m256i bits) {
  const __m256i low = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits)), 16);
  const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1)), 16);
  const __m128i low_half = _mm256_cvtps_ph(_mm256_castsi256_ps(low), _MM_FROUND_TO_NEAREST_INT);
  const __m128i high_half = _mm256_cvtps_ph(_mm256_castsi256_ps(high), _MM_FROUND_TO_NEAREST_INT);
  return _mm256_set_m128i(high_half, low_half);
}

template <bool FromBf16>
MUSER_AVX2 inline __m256i as_f16(__m256i bits) {
  if constexpr (FromBf16) {
    return bf16_as_f16(bits);
  } else {
    return bits;
  }
}

template <bool FromBf16>
MUSER_AVX2 bool convert_elements(const uint8_t* in, uint8_t* out, size_t elements) {
  FiniteCheck check;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const __m256i halves = as_f16<FromBf16>(load_u16(in + 2 * i));
    check.look(halves);
    store_u16(out + 2 * i, halves);
  }
  const Kernels& reference = reference_kernels();
  const auto rest = FromBf16 ? reference.bf16_to_f16 : reference.f16_to_f16;
  return rest(in + 2 * i, out + 2 * i, elements - i) && check.finite();
}

template <bool FromBf16>
MUSER_AVX2 bool interleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  const size_t half = head_dim / 2;
  if (half % kLanes != 0) {
    const Kernels& reference = reference_kernels();
    return (FromBf16 ? reference.bf16_interleave : reference.f16_interleave)(in, out, heads, head_dim);
  }
  FiniteCheck check;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; j += kLanes) {
      const __m256i first = as_f16<FromBf16>(load_u16(in + 2 * j));
      const __m256i second = as_f16<FromBf16>(load_u16(in + 2 * (j + half)));
      check.look(first);
      check.look(second);
      const __m256i low = _mm256_unpacklo_epi16(first, second);
      const __m256i high = _mm256_unpackhi_epi16(first, second);
      store_u16(out + 4 * j, _mm256_permute2x128_si256(low, high, 0x20));
      store_u16(out + 4 * j + 32, _mm256_permute2x128_si256(low, high, 0x31));
    }
  }
  return check.finite();
}

/// Even elements to the lower, odd ones to the upper half of the register.
MUSER_AVX2 inline __m256i split_pairs(__m256i pairs) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, order), _MM_SHUFFLE(3, 1, 2, 0));
}

MUSER_AVX2 bool deinterleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  const size_t half = head_dim / 2;
  if (half % kLanes != 0) return reference_kernels().f16_deinterleave(in, out, heads, head_dim);
  FiniteCheck check;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; j += kLanes) {
      const __m256i first = split_pairs(load_u16(in + 4 * j));
      const __m256i second = split_pairs(load_u16(in + 4 * j + 32));
      check.look(first);
      check.look(second);
      store_u16(out + 2 * j, _mm256_permute2x128_si256(first, second, 0x20));
      store_u16(out + 2 * (j + half), _mm256_permute2x128_si256(first, second, 0x31));
    }
  }
  return check.finite();
}

MUSER_AVX2 void f16_to_f32(const uint8_t* in, float* out, size_t elements) {
  size_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
  }
  reference_kernels().f16_to_f32(in + 2 * i, out + i, elements - i);
}

MUSER_AVX2 bool f32_to_f16(const float* in, uint8_t* out, size_t elements) {
  FiniteCheck check;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(in + i + 8), _MM_FROUND_TO_NEAREST_INT);
    const __m256i halves = _mm256_set_m128i(high, low);
    check.look(halves);
    store_u16(out + 2 * i, halves);
  }
  return reference_kernels().f32_to_f16(in + i, out + 2 * i, elements - i) && check.finite();
}

/// The transform's steps with strides 1, 2 and 4, which stay inside a register.
MUSER_AVX2 inline __m256 hadamard8(__m256 values) {
  // blend(sum, swapped - own): the odd places take "left minus right".
  __m256 swapped = _mm256_permute_ps(values, _MM_SHUFFLE(2, 3, 0, 1));
  values = _mm256_blend_ps(_mm256_add_ps(values, swapped), _mm256_sub_ps(swapped, values), 0b10101010);
  swapped = _mm256_permute_ps(values, _MM_SHUFFLE(1, 0, 3, 2));
  values = _mm256_blend_ps(_mm256_add_ps(values, swapped), _mm256_sub_ps(swapped, values), 0b11001100);
  swapped = _mm256_permute2f128_ps(values, values, 0x01);
  return _mm256_blend_ps(_mm256_add_ps(values, swapped), _mm256_sub_ps(swapped, values), 0b11110000);
}

MUSER_AVX2 void hadamard(float* values, size_t elements, size_t block) {
  if (block < 8) {
    reference_kernels().hadamard(values, elements, block);
    return;
  }
  const __m256 scale = _mm256_set1_ps(1.0f / std::sqrt(static_cast<float>(block)));
  for (float* start = values; start < values + elements; start += block) {
    for (size_t i = 0; i < block; i += 8) _mm256_storeu_ps(start + i, hadamard8(_mm256_loadu_ps(start + i)));
    for (size_t stride = 8; stride < block; stride *= 2) {
      for (size_t base = 0; base < block; base += 2 * stride) {
        for (size_t i = base; i < base + stride; i += 8) {
          const __m256 left = _mm256_loadu_ps(start + i);
          const __m256 right = _mm256_loadu_ps(start + i + stride);
          _mm256_storeu_ps(start + i, _mm256_add_ps(left, right));
          _mm256_storeu_ps(start + i + stride, _mm256_sub_ps(left, right));
        }
      }
    }
    for (size_t i = 0; i < block; i += 8) {
      _mm256_storeu_ps(start + i, _mm256_mul_ps(_mm256_loadu_ps(start + i), scale));
    }
  }
}

MUSER_AVX2 inline float largest_magnitude(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 ab = _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b));
  const __m256 cd = _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d));
  const __m256 all = _mm256_max_ps(ab, cd);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

/// As std::round: halves away from zero. Adding the float just below one half and cutting off is exact for |x| <= 128.
MUSER_AVX2 inline __m256i round_away(__m256 values) {
  const __m256 below_half = _mm256_set1_ps(0x1.fffffep-2f);
  const __m256 sign = _mm256_and_ps(values, _mm256_set1_ps(-0.0f));
  return _mm256_cvttps_epi32(_mm256_add_ps(values, _mm256_or_ps(sign, below_half)));
}

MUSER_AVX2 void quantize_q8_0(const float* in, uint8_t* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, out += kQ8BlockBytes) {
    const __m256 a = _mm256_loadu_ps(in + start);
    const __m256 b = _mm256_loadu_ps(in + start + 8);
    const __m256 c = _mm256_loadu_ps(in + start + 16);
    const __m256 d = _mm256_loadu_ps(in + start + 24);
    const float scale = largest_magnitude(a, b, c, d) / 127.0f;
    const __m256 inverse = _mm256_set1_ps(scale >= kQ8SmallestScale ? 1.0f / scale : 0.0f);
    const auto scale_bits = static_cast<uint16_t>(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
    __builtin_memcpy(out, &scale_bits, sizeof(scale_bits));
    const __m256i ab = _mm256_packs_epi32(round_away(_mm256_mul_ps(a, inverse)), round_away(_mm256_mul_ps(b, inverse)));
    const __m256i cd = _mm256_packs_epi32(round_away(_mm256_mul_ps(c, inverse)), round_away(_mm256_mul_ps(d, inverse)));
    // The packs work on 128-bit lanes: put their groups of four in order again.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store_u16(out + 2, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order));
  }
}

MUSER_AVX2 void dequantize_q8_0(const uint8_t* in, float* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, in += kQ8BlockBytes) {
    uint16_t scale_bits = 0;
    __builtin_memcpy(&scale_bits, in, sizeof(scale_bits));
    const __m256 scale = _mm256_set1_ps(_cvtsh_ss(scale_bits));
    for (size_t i = 0; i < kQ8BlockElements; i += 8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + 2 + i));
      const __m256 integers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
      _mm256_storeu_ps(out + start + i, _mm256_mul_ps(integers, scale));
    }
  }
}

MUSER_AVX2 void transpose8x8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  __m128i row[8];
  for (size_t i = 0; i < 8; ++i) row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * in_stride));
  __m128i pair[8];
  for (size_t i = 0; i < 4; ++i) {
    pair[2 * i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
    pair[2 * i + 1] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
  }
  // quad[0..3]: columns 0-1, 2-3, 4-5, 6-7 of rows 0 to 3; quad[4..7]: the same of rows 4 to 7.
  __m128i quad[8];
  for (size_t i = 0; i < 2; ++i) {
    quad[4 * i] = _mm_unpacklo_epi32(pair[4 * i], pair[4 * i + 2]);
    quad[4 * i + 1] = _mm_unpackhi_epi32(pair[4 * i], pair[4 * i + 2]);
    quad[4 * i + 2] = _mm_unpacklo_epi32(pair[4 * i + 1], pair[4 * i + 3]);
    quad[4 * i + 3] = _mm_unpackhi_epi32(pair[4 * i + 1], pair[4 * i + 3]);
  }
  for (size_t i = 0; i < 4; ++i) {
    auto* even = reinterpret_cast<__m128i*>(out + 2 * i * out_stride);
    auto* odd = reinterpret_cast<__m128i*>(out + (2 * i + 1) * out_stride);
    _mm_storeu_si128(even, _mm_unpacklo_epi64(quad[i], quad[4 + i]));
    _mm_storeu_si128(odd, _mm_unpackhi_epi64(quad[i], quad[4 + i]));
  }
}

MUSER_AVX2 void transpose_u16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows,
                              size_t columns) {
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

const Kernels* avx2_kernels() {
  static const Kernels table{
      .name = "avx2",
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
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return supported ? &table : nullptr;
}

}  // namespace muser::kv

#else

namespace muser::kv {

const Kernels* avx2_kernels() { return nullptr; }

}  // namespace muser::kv

#endif
