// The conversions against ggml's own.
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "convert.h"
#include "half.h"
#include "llama_fixture.h"

namespace muser::kv {
namespace {

std::vector<float> random_floats(size_t count, float scale) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

TEST(GgmlAgreement, Halves) {
  muse_nano();  // ggml's tables are made with the first backend
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (half_is_finite(half)) ASSERT_EQ(half_to_float(half), ggml_fp16_to_fp32(half));
    const float brain = bf16_to_float(half);
    if (!std::isfinite(brain)) continue;
    ASSERT_EQ(brain, ggml_bf16_to_fp32(ggml_bf16_t{half}));
    ASSERT_EQ(float_to_half(brain), ggml_fp32_to_fp16(brain));
  }
  for (const float scale : {1e-7f, 1e-4f, 1.0f, 1e4f}) {
    for (const float value : random_floats(100000, scale)) {
      ASSERT_EQ(float_to_half(value), ggml_fp32_to_fp16(value)) << value;
    }
  }
}

TEST(GgmlAgreement, Q8) {
  muse_nano();
  for (const float scale : {1e-6f, 0.1f, 1.0f, 1000.0f}) {
    const auto values = random_floats(32 * 1024, scale);
    const size_t bytes = values.size() / kQ8BlockElements * kQ8BlockBytes;
    ASSERT_EQ(bytes, ggml_row_size(GGML_TYPE_Q8_0, static_cast<int64_t>(values.size())));
    std::vector<uint8_t> ours(bytes);
    std::vector<uint8_t> theirs(bytes);
    kernels().quantize_q8_0(values.data(), ours.data(), values.size());
    ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), theirs.data(), 0, 1, static_cast<int64_t>(values.size()),
                        nullptr);
    EXPECT_EQ(ours, theirs);
    std::vector<float> our_values(values.size());
    std::vector<float> their_values(values.size());
    kernels().dequantize_q8_0(ours.data(), our_values.data(), values.size());
    ggml_get_type_traits(GGML_TYPE_Q8_0)
        ->to_float(theirs.data(), their_values.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(our_values, their_values);
  }
}

}  // namespace
}  // namespace muser::kv
