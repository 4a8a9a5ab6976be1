// Whether what a layer does to K is plain RoPE of a base, told from K alone.
#include "rope_form.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace muser {
namespace {

constexpr uint32_t kHeads = 2;
constexpr uint32_t kHeadDim = 64;
constexpr double kBase = 500000;

/// Angle of a pair at a position.
using Angle = std::function<double(uint32_t position, uint32_t pair)>;

double plain(uint32_t position, uint32_t pair) { return position * std::pow(kBase, -2.0 * pair / kHeadDim); }

std::vector<KeyAt> keys_turned_by(const Angle& angle) {
  std::vector<KeyAt> keys;
  for (const uint32_t position : {0U, 1U, 7U, 61U, 509U, 4093U}) {
    KeyAt key{position, std::vector<float>(kHeads * kHeadDim)};
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t pair = 0; pair < kHeadDim / 2; ++pair) {
        const double x = std::sin(1.0 + head * 31 + pair * 7);
        const double y = std::cos(2.0 + head * 17 + pair * 5);
        const double turn = angle(position, pair);
        const size_t at = head * kHeadDim + pair;
        key.elements[at] = static_cast<float>(x * std::cos(turn) - y * std::sin(turn));
        key.elements[at + kHeadDim / 2] = static_cast<float>(x * std::sin(turn) + y * std::cos(turn));
      }
    }
    keys.push_back(key);
  }
  return keys;
}

Turn turn_by(const Angle& angle) { return turn_of(keys_turned_by(angle), kHeadDim, kBase); }

TEST(RopeForm, KnowsPlainRopeAndNone) {
  EXPECT_EQ(turn_by(plain), Turn::Rope);
  EXPECT_EQ(turn_by([](uint32_t, uint32_t) { return 0.0; }), Turn::None);
}

TEST(RopeForm, NoticesEverythingElse) {
  EXPECT_EQ(turn_of(keys_turned_by(plain), kHeadDim, 10000), Turn::Other) << "another base";
  EXPECT_EQ(turn_of(keys_turned_by(plain), kHeadDim, kBase * 1.1), Turn::Other) << "nearly the base";
  EXPECT_EQ(turn_by([](uint32_t p, uint32_t j) { return plain(p, j) / 2; }), Turn::Other) << "linear scaling";
  EXPECT_EQ(turn_by([](uint32_t p, uint32_t j) { return -plain(p, j); }), Turn::Other) << "backwards";
  EXPECT_EQ(turn_by([](uint32_t p, uint32_t j) { return j < 16 ? plain(p, j) : 0; }), Turn::Other) << "partial";
  const auto slow = [](uint32_t p, uint32_t j) { return plain(p, j) / (j < 24 ? 1 : 4); };
  EXPECT_EQ(turn_by(slow), Turn::Other) << "YaRN: slow pairs only";
}

TEST(RopeForm, NoticesInterleavedPairs) {
  std::vector<KeyAt> keys = keys_turned_by(plain);
  for (KeyAt& key : keys) {
    const std::vector<float> halves = key.elements;
    for (size_t i = 0; i < halves.size(); ++i) {
      const size_t head = i / kHeadDim * kHeadDim;
      const size_t element = i % kHeadDim;
      const size_t half = kHeadDim / 2;
      key.elements[head + (element < half ? 2 * element : 2 * (element - half) + 1)] = halves[i];
    }
  }
  EXPECT_EQ(turn_of(keys, kHeadDim, kBase), Turn::Other);
}

TEST(RopeForm, TakesRoundingButNoOtherLength) {
  std::vector<KeyAt> keys = keys_turned_by(plain);
  for (KeyAt& key : keys) {
    for (float& element : key.elements) element *= 1 + 0.001F * static_cast<float>(key.position % 7 - 3.0);
  }
  EXPECT_EQ(turn_of(keys, kHeadDim, kBase), Turn::Rope);
  for (float& element : keys.back().elements) element *= 1.2F;
  EXPECT_EQ(turn_of(keys, kHeadDim, kBase), Turn::Other);
}

TEST(RopeForm, TakesNothingForSomething) {
  std::vector<KeyAt> keys = keys_turned_by(plain);
  for (KeyAt& key : keys) std::fill(key.elements.begin(), key.elements.end(), 0.0F);
  EXPECT_EQ(turn_of(keys, kHeadDim, kBase), Turn::Other) << "an empty row";
  keys = keys_turned_by(plain);
  keys.back().elements[3] = NAN;
  EXPECT_EQ(turn_of(keys, kHeadDim, kBase), Turn::Other) << "not a number";
}

}  // namespace
}  // namespace muser
