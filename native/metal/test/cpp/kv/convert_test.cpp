#include "convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include "error.h"
#include "half.h"

namespace muser::kv {
namespace {

using Bytes = std::vector<uint8_t>;
using ByteConversion = bool (*)(const uint8_t*, uint8_t*, size_t);

constexpr size_t kAllPatterns = 65536;

/// Bytes at an odd address, since wire data starts anywhere.
class OddBytes {
 public:
  explicit OddBytes(const std::vector<uint16_t>& values) : storage_(2 * values.size() + 1) {
    if (!values.empty()) std::memcpy(storage_.data() + 1, values.data(), 2 * values.size());
  }
  const uint8_t* data() const { return storage_.data() + 1; }

 private:
  Bytes storage_;
};

std::vector<uint16_t> random_patterns(size_t count, uint32_t seed, bool finite_in_f16) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  for (auto& value : values) {
    do value = static_cast<uint16_t>(random());
    while (finite_in_f16 && !half_is_finite(value));
  }
  return values;
}

std::vector<float> random_floats(size_t count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

uint16_t word(const Bytes& bytes, size_t index) {
  uint16_t value = 0;
  std::memcpy(&value, bytes.data() + 2 * index, 2);
  return value;
}

// ---- the reference against first principles

TEST(Half, KnownValues) {
  EXPECT_EQ(float_to_half(0.0f), 0x0000);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(1.0f), 0x3c00);
  EXPECT_EQ(float_to_half(-2.0f), 0xc000);
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(0x1p-14f), 0x0400);
  EXPECT_EQ(float_to_half(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000) << "a tie goes to even";
  EXPECT_EQ(float_to_half(0x1.8p-24f), 0x0002) << "a tie goes to even";
  EXPECT_EQ(float_to_half(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00) << "a tie goes to even";
  EXPECT_EQ(float_to_half(1.0f + 0x1.8p-10f), 0x3c02) << "a tie goes to even";
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
  EXPECT_FALSE(half_is_finite(float_to_half(NAN)));
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < kAllPatterns; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!half_is_finite(half)) continue;
    ASSERT_EQ(float_to_half(half_to_float(half)), half) << bits;
  }
}

TEST(Half, RoundsToTheNearest) {
  // Between two neighbours the nearer one wins, at the middle the even one.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float below = half_to_float(static_cast<uint16_t>(bits));
    const float above = half_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = (below + above) / 2;
    ASSERT_EQ(float_to_half(std::nextafter(middle, below)), bits);
    ASSERT_EQ(float_to_half(std::nextafter(middle, above)), bits + 1);
    ASSERT_EQ(float_to_half(middle), bits % 2 == 0 ? bits : bits + 1);
  }
}

TEST(Reference, InterleavePutsTheHalvesSideBySide) {
  const std::vector<uint16_t> in{1, 2, 3, 11, 12, 13, 21, 22, 23, 31, 32, 33};  // two heads of six
  const std::vector<uint16_t> expected{1, 11, 2, 12, 3, 13, 21, 31, 22, 32, 23, 33};
  std::vector<uint16_t> out(in.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(in.data());
  EXPECT_TRUE(reference_kernels().f16_interleave(bytes, reinterpret_cast<uint8_t*>(out.data()), 2, 6));
  EXPECT_EQ(out, expected);
  std::vector<uint16_t> back(in.size());
  reference_kernels().f16_deinterleave(reinterpret_cast<const uint8_t*>(out.data()),
                                       reinterpret_cast<uint8_t*>(back.data()), 2, 6);
  EXPECT_EQ(back, in);
}

TEST(Reference, HadamardIsTheMatrixAndItsOwnInverse) {
  constexpr size_t kBlock = 64;
  const auto in = random_floats(kBlock, 3, 1.0f);
  auto out = in;
  reference_kernels().hadamard(out.data(), kBlock, kBlock);
  for (uint32_t i = 0; i < kBlock; ++i) {
    double sum = 0;
    for (uint32_t j = 0; j < kBlock; ++j) sum += std::popcount(i & j) % 2 == 0 ? in[j] : -in[j];
    EXPECT_NEAR(out[i], sum / 8, 1e-5);
  }
  reference_kernels().hadamard(out.data(), kBlock, kBlock);
  for (uint32_t i = 0; i < kBlock; ++i) EXPECT_NEAR(out[i], in[i], 1e-5);
}

// ---- the CPU's set against the reference, bit for bit

TEST(Kernels, AreNotTheReferenceOnAKnownCpu) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this CPU has no AVX2";
  EXPECT_STREQ(kernels().name, "avx2");
#elif defined(__aarch64__)
  EXPECT_STREQ(kernels().name, "neon");
#endif
}

struct Conversion {
  const char* name;
  ByteConversion Kernels::*function;

  friend std::ostream& operator<<(std::ostream& out, const Conversion& conversion) { return out << conversion.name; }
};

class ElementConversion : public testing::TestWithParam<Conversion> {};

TEST_P(ElementConversion, AgreesOnEveryPatternAlone) {
  const auto fast = kernels().*GetParam().function;
  const auto reference = reference_kernels().*GetParam().function;
  for (uint32_t bits = 0; bits < kAllPatterns; ++bits) {
    // One pattern in each lane of the widest register, so that the vector path runs and its check can miss nothing.
    const OddBytes in(std::vector<uint16_t>(16, static_cast<uint16_t>(bits)));
    Bytes fast_out(32);
    Bytes reference_out(32);
    ASSERT_EQ(fast(in.data(), fast_out.data(), 16), reference(in.data(), reference_out.data(), 16)) << bits;
    if (reference(in.data(), reference_out.data(), 16)) {
      ASSERT_TRUE(same_bits(fast_out, reference_out)) << bits;
    }
  }
}

TEST_P(ElementConversion, AgreesOnEveryLengthAndFindsOneBadValueAnywhere) {
  const auto fast = kernels().*GetParam().function;
  const auto reference = reference_kernels().*GetParam().function;
  for (size_t count = 0; count <= 67; ++count) {
    auto values = random_patterns(count, static_cast<uint32_t>(count), true);
    for (auto& value : values) value &= 0xbfff;  // exponents that both types keep within f16
    Bytes fast_out(2 * count);
    Bytes reference_out(2 * count);
    ASSERT_TRUE(fast(OddBytes(values).data(), fast_out.data(), count));
    ASSERT_TRUE(reference(OddBytes(values).data(), reference_out.data(), count));
    ASSERT_TRUE(same_bits(fast_out, reference_out));
    for (size_t bad = 0; bad < count; ++bad) {
      auto broken = values;
      broken[bad] = 0x7f80;  // infinity in bf16, NaN in f16
      ASSERT_FALSE(fast(OddBytes(broken).data(), fast_out.data(), count)) << count << " " << bad;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ElementConversion,
                         testing::Values(Conversion{"f16", &Kernels::f16_to_f16},
                                         Conversion{"bf16", &Kernels::bf16_to_f16}),
                         [](const auto& info) { return info.param.name; });

TEST(Kernels, Bf16BeyondF16IsRefused) {
  const auto refused = [](uint16_t bits) {
    const std::vector<uint16_t> values(16, bits);
    Bytes out(32);
    return !kernels().bf16_to_f16(OddBytes(values).data(), out.data(), 16);
  };
  EXPECT_FALSE(refused(0x477f));  // 65,280, the last bf16 that f16 holds
  EXPECT_TRUE(refused(0x4780));   // 65,536
  EXPECT_TRUE(refused(0xc780));
  EXPECT_TRUE(refused(0x7f80));
  EXPECT_TRUE(refused(0x7fc0));
  EXPECT_FALSE(refused(0x0001)) << "what is too small becomes zero";
}

class HeadOrder : public testing::TestWithParam<size_t> {};

TEST_P(HeadOrder, AgreesWithTheReference) {
  const size_t head_dim = GetParam();
  constexpr size_t kHeads = 5;
  using HeadConversion = bool (*Kernels::*)(const uint8_t*, uint8_t*, size_t, size_t);
  for (const HeadConversion function :
       {&Kernels::f16_interleave, &Kernels::bf16_interleave, &Kernels::f16_deinterleave}) {
    auto values = random_patterns(kHeads * head_dim, static_cast<uint32_t>(head_dim), true);
    for (auto& value : values) value &= 0xbfff;
    Bytes fast_out(2 * values.size());
    Bytes reference_out(2 * values.size());
    EXPECT_TRUE((kernels().*function)(OddBytes(values).data(), fast_out.data(), kHeads, head_dim));
    EXPECT_TRUE((reference_kernels().*function)(OddBytes(values).data(), reference_out.data(), kHeads, head_dim));
    EXPECT_TRUE(same_bits(fast_out, reference_out));
    for (const size_t bad : {size_t{0}, head_dim - 1, kHeads * head_dim - 1, head_dim / 2}) {
      auto broken = values;
      broken[bad] = 0x7f80;
      EXPECT_FALSE((kernels().*function)(OddBytes(broken).data(), fast_out.data(), kHeads, head_dim)) << bad;
      EXPECT_FALSE((reference_kernels().*function)(OddBytes(broken).data(), reference_out.data(), kHeads, head_dim));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, HeadOrder, testing::Values(2, 6, 16, 32, 64, 80, 96, 128, 192, 256));

TEST(Kernels, FloatsToHalvesAgree) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < kAllPatterns; ++bits) {
    const float half = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(half)) continue;
    const float above = std::nextafter(half, INFINITY);
    const float below = std::nextafter(half, -INFINITY);
    values.insert(values.end(), {half, above, below, half * 1.0003f});
  }
  for (const float scale : {1e-30f, 1e-6f, 1.0f, 3e4f, 1e30f}) {
    const auto more = random_floats(5000, 7, scale);
    values.insert(values.end(), more.begin(), more.end());
  }
  Bytes fast(2 * values.size());
  Bytes reference(2 * values.size());
  EXPECT_FALSE(kernels().f32_to_f16(values.data(), fast.data(), values.size())) << "there are infinities";
  EXPECT_FALSE(reference_kernels().f32_to_f16(values.data(), reference.data(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(word(fast, i), word(reference, i)) << values[i];
}

TEST(Kernels, HalvesToFloatsAgree) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4099}}) {
    const auto values = random_patterns(count, 11, true);
    std::vector<float> fast(count);
    std::vector<float> reference(count);
    kernels().f16_to_f32(OddBytes(values).data(), fast.data(), count);
    reference_kernels().f16_to_f32(OddBytes(values).data(), reference.data(), count);
    EXPECT_TRUE(same_bits(fast, reference));
  }
}

TEST(Kernels, HadamardAgrees) {
  for (size_t block = 1; block <= 512; block *= 2) {
    auto fast = random_floats(3 * block, static_cast<uint32_t>(block), 4.0f);
    auto reference = fast;
    kernels().hadamard(fast.data(), fast.size(), block);
    reference_kernels().hadamard(reference.data(), reference.size(), block);
    EXPECT_TRUE(same_bits(fast, reference)) << block;
  }
}

TEST(Kernels, Q8Agrees) {
  std::vector<std::vector<float>> inputs;
  for (const float scale : {1e-42f, 1e-10f, 0.01f, 1.0f, 100.0f, 6e4f}) inputs.push_back(random_floats(4096, 5, scale));
  inputs.emplace_back(64, 0.0f);
  inputs.emplace_back(64, -0.0f);
  std::vector<float> ties(512);  // a scale of 1, so that every second value lies exactly between two integers
  for (size_t i = 0; i < ties.size(); ++i) ties[i] = i % 32 == 0 ? 127.0f : static_cast<float>(i % 200) / 2 - 50.0f;
  inputs.push_back(ties);
  std::vector<float> below_ties = ties;
  for (auto& value : below_ties) value = value == 127.0f ? value : std::nextafter(value, 0.0f);
  inputs.push_back(below_ties);
  for (const auto& input : inputs) {
    Bytes fast(input.size() / kQ8BlockElements * kQ8BlockBytes);
    Bytes reference(fast.size());
    kernels().quantize_q8_0(input.data(), fast.data(), input.size());
    reference_kernels().quantize_q8_0(input.data(), reference.data(), input.size());
    EXPECT_TRUE(same_bits(fast, reference));
    std::vector<float> fast_back(input.size());
    std::vector<float> reference_back(input.size());
    kernels().dequantize_q8_0(fast.data(), fast_back.data(), input.size());
    reference_kernels().dequantize_q8_0(reference.data(), reference_back.data(), input.size());
    EXPECT_TRUE(same_bits(fast_back, reference_back));
  }
}

TEST(Kernels, TransposeAgrees) {
  for (const size_t rows : {1, 7, 8, 9, 32, 33}) {
    for (const size_t columns : {1, 8, 15, 64, 130}) {
      const auto values = random_patterns(rows * columns, 13, false);
      const size_t out_stride = 2 * rows + 6;
      Bytes fast(columns * out_stride, 0xee);
      Bytes reference(fast);
      kernels().transpose_u16(OddBytes(values).data(), 2 * columns, fast.data(), out_stride, rows, columns);
      reference_kernels().transpose_u16(OddBytes(values).data(), 2 * columns, reference.data(), out_stride, rows,
                                        columns);
      EXPECT_TRUE(same_bits(fast, reference)) << rows << " x " << columns;
    }
  }
}

// ---- paged rows

/// Two heads of four bytes, blocks of three tokens, heads outside tokens: block = head 0 of 3 tokens, head 1 of them.
PagedRows paged_example(const Bytes& memory) {
  return {.base = memory.data(), .size = memory.size(), .table = {2, 0}, .block_tokens = 3, .block_stride = 24,
          .token_stride = 4, .head_stride = 12, .heads = 2, .head_bytes = 4};
}

TEST(PagedRows, GathersThroughTheTable) {
  Bytes memory(72);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i);
  Bytes out(16);
  EXPECT_EQ(gather_paged_rows(paged_example(memory), 2, 2, out.data(), out.size()), 16u);
  EXPECT_EQ(out, (Bytes{56, 57, 58, 59, 68, 69, 70, 71, 0, 1, 2, 3, 12, 13, 14, 15}));
}

TEST(PagedRows, GathersHeadsThatTouch) {
  Bytes memory(48);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i);
  auto source = paged_example(memory);
  source.table = {1, 0};
  source.token_stride = 8;
  source.head_stride = 4;
  Bytes out(8);
  gather_paged_rows(source, 1, 1, out.data(), out.size());
  EXPECT_EQ(out, (Bytes{32, 33, 34, 35, 36, 37, 38, 39}));
}

TEST(PagedRows, RefusesWhatLiesOutside) {
  const Bytes memory(72);
  Bytes out(64);
  auto source = paged_example(memory);
  EXPECT_THROW(gather_paged_rows(source, 5, 2, out.data(), out.size()), KvError) << "beyond the table";
  EXPECT_THROW(gather_paged_rows(source, 0, 2, out.data(), 15), KvError) << "too small a target";
  EXPECT_THROW(gather_paged_rows(source, UINT32_MAX, 2, out.data(), out.size()), KvError);
  source.table = {3, 0};
  EXPECT_THROW(gather_paged_rows(source, 0, 1, out.data(), out.size()), KvError) << "beyond the memory";
  source.table = {UINT32_MAX};
  source.block_stride = UINT64_MAX / 2;
  EXPECT_THROW(gather_paged_rows(source, 0, 1, out.data(), out.size()), KvError) << "an offset that overflows";
  source.block_tokens = 0;
  EXPECT_THROW(gather_paged_rows(source, 0, 1, out.data(), out.size()), KvError);
}

}  // namespace
}  // namespace muser::kv
