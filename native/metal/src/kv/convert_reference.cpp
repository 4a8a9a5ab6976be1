#include <cmath>

#include "convert.h"
#include "half.h"
#include "kernels_internal.h"
#include "state_reader.h"

namespace muser::kv {

namespace {

uint16_t element(const uint8_t* in, size_t index) { return load<uint16_t>(in + 2 * index); }

void set_element(uint8_t* out, size_t index, uint16_t bits) { store<uint16_t>(out + 2 * index, bits); }

uint16_t f16_as_f16(uint16_t bits) { return bits; }

uint16_t bf16_as_f16(uint16_t bits) { return float_to_half(bf16_to_float(bits)); }

template <uint16_t (*Convert)(uint16_t)>
bool convert_elements(const uint8_t* in, uint8_t* out, size_t elements) {
  bool finite = true;
  for (size_t i = 0; i < elements; ++i) {
    const uint16_t bits = Convert(element(in, i));
    set_element(out, i, bits);
    finite &= half_is_finite(bits);
  }
  return finite;
}

template <uint16_t (*Convert)(uint16_t)>
bool interleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  bool finite = true;
  const size_t half = head_dim / 2;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; ++j) {
      const uint16_t low = Convert(element(in, j));
      const uint16_t high = Convert(element(in, j + half));
      set_element(out, 2 * j, low);
      set_element(out, 2 * j + 1, high);
      finite &= half_is_finite(low) && half_is_finite(high);
    }
  }
  return finite;
}

bool deinterleave(const uint8_t* in, uint8_t* out, size_t heads, size_t head_dim) {
  bool finite = true;
  const size_t half = head_dim / 2;
  for (size_t head = 0; head < heads; ++head, in += 2 * head_dim, out += 2 * head_dim) {
    for (size_t j = 0; j < half; ++j) {
      const uint16_t low = element(in, 2 * j);
      const uint16_t high = element(in, 2 * j + 1);
      set_element(out, j, low);
      set_element(out, j + half, high);
      finite &= half_is_finite(low) && half_is_finite(high);
    }
  }
  return finite;
}

void f16_to_f32(const uint8_t* in, float* out, size_t elements) {
  for (size_t i = 0; i < elements; ++i) out[i] = half_to_float(element(in, i));
}

bool f32_to_f16(const float* in, uint8_t* out, size_t elements) {
  bool finite = true;
  for (size_t i = 0; i < elements; ++i) {
    const uint16_t bits = float_to_half(in[i]);
    set_element(out, i, bits);
    finite &= half_is_finite(bits);
  }
  return finite;
}

void hadamard_block(float* values, size_t block) {
  for (size_t stride = 1; stride < block; stride *= 2) {
    for (size_t base = 0; base < block; base += 2 * stride) {
      for (size_t i = base; i < base + stride; ++i) {
        const float sum = values[i] + values[i + stride];
        const float difference = values[i] - values[i + stride];
        values[i] = sum;
        values[i + stride] = difference;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (size_t i = 0; i < block; ++i) values[i] *= scale;
}

void hadamard(float* values, size_t elements, size_t block) {
  for (size_t i = 0; i < elements; i += block) hadamard_block(values + i, block);
}

void quantize_q8_0(const float* in, uint8_t* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, out += kQ8BlockBytes) {
    float largest = 0.0f;
    for (size_t i = 0; i < kQ8BlockElements; ++i) {
      const float magnitude = std::fabs(in[start + i]);
      if (magnitude > largest) largest = magnitude;
    }
    const float scale = largest / 127.0f;
    const float inverse = scale >= kQ8SmallestScale ? 1.0f / scale : 0.0f;
    store<uint16_t>(out, float_to_half(scale));
    for (size_t i = 0; i < kQ8BlockElements; ++i) {
      out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(in[start + i] * inverse)));
    }
  }
}

void dequantize_q8_0(const uint8_t* in, float* out, size_t elements) {
  for (size_t start = 0; start < elements; start += kQ8BlockElements, in += kQ8BlockBytes) {
    const float scale = half_to_float(load<uint16_t>(in));
    for (size_t i = 0; i < kQ8BlockElements; ++i) {
      out[start + i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
    }
  }
}

void transpose_u16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      set_element(out + column * out_stride, row, element(in + row * in_stride, column));
    }
  }
}

}  // namespace

const Kernels& reference_kernels() {
  static const Kernels table{
      .name = "reference",
      .f16_to_f16 = convert_elements<f16_as_f16>,
      .bf16_to_f16 = convert_elements<bf16_as_f16>,
      .f16_interleave = interleave<f16_as_f16>,
      .bf16_interleave = interleave<bf16_as_f16>,
      .f16_deinterleave = deinterleave,
      .f16_to_f32 = f16_to_f32,
      .f32_to_f16 = f32_to_f16,
      .hadamard = hadamard,
      .quantize_q8_0 = quantize_q8_0,
      .dequantize_q8_0 = dequantize_q8_0,
      .transpose_u16 = transpose_u16,
  };
  return table;
}

}  // namespace muser::kv
