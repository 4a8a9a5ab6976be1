#include "stage_buffer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "export_view.h"
#include "state_form.h"
#include "synthetic_state.h"
#include "token_cover.h"

namespace muser::kv {
namespace {

constexpr uint32_t kHeads = 2;
constexpr uint32_t kHeadDim = 32;

Geometry geometry(bool interleaved = true) {
  using enum LayerKind;
  return {.layers = {Window, Window, Global, Window, Global},
          .kv_heads = kHeads,
          .head_dim = kHeadDim,
          .window = 16,
          .k_interleaved = interleaved};
}

std::vector<int32_t> positions(int32_t start, int32_t end) {
  std::vector<int32_t> result(static_cast<size_t>(end - start));
  std::iota(result.begin(), result.end(), start);
  return result;
}

SyntheticState synthetic(int32_t start, int32_t end, int32_t window_start, bool v_transposed = false) {
  SyntheticState state;
  state.geometry = geometry();
  state.v_transposed = v_transposed;
  state.global_positions = positions(start, end);
  state.window_positions = positions(window_start, end);
  return state;
}

StateForm learn(const SyntheticState& state) {
  const auto bytes = state.bytes();
  return learn_state_form(bytes.data(), bytes.size(), state.geometry);
}

/// The row as it must look on the wire.
std::vector<uint16_t> wire_row(const Geometry& shape, uint32_t layer, Kind kind, uint32_t position) {
  std::vector<uint16_t> row(shape.row_elements());
  for (uint32_t i = 0; i < row.size(); ++i) {
    const uint32_t head = i / shape.head_dim;
    const uint32_t j = i % shape.head_dim;
    uint32_t cached = j;
    if (kind == Kind::K && shape.k_interleaved) {
      const uint32_t half = shape.head_dim / 2;
      cached = j < half ? 2 * j : 2 * (j - half) + 1;
    }
    row[i] = SyntheticState::value(layer, kind, position, head * shape.head_dim + cached);
  }
  return row;
}

std::vector<uint8_t> wire_rows(const Geometry& shape, uint32_t layer, Kind kind, uint32_t start, uint32_t count) {
  std::vector<uint8_t> bytes;
  for (uint32_t position = start; position < start + count; ++position) {
    const auto row = wire_row(shape, layer, kind, position);
    const auto* begin = reinterpret_cast<const uint8_t*>(row.data());
    bytes.insert(bytes.end(), begin, begin + 2 * row.size());
  }
  return bytes;
}

void put_rows(StageBuffer& stage, const Geometry& shape, uint32_t layer, Kind kind, uint32_t start, uint32_t count) {
  const auto bytes = wire_rows(shape, layer, kind, start, count);
  stage.put(layer, kind, start, count, WireType::F16, bytes.data(), bytes.size());
}

/// Puts everything, in pieces of `step` rows.
void fill(StageBuffer& stage, const Geometry& shape, uint32_t step) {
  for (uint32_t layer = 0; layer < shape.layers.size(); ++layer) {
    const uint32_t first = shape.layers[layer] == LayerKind::Window ? stage.window_start() : stage.start();
    for (const Kind kind : {Kind::K, Kind::V}) {
      for (uint32_t start = first; start < stage.end(); start += step) {
        put_rows(stage, shape, layer, kind, start, std::min(step, stage.end() - start));
      }
    }
  }
}

template <typename Action>
void expect_code(KvErrorCode code, Action action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const KvError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_FALSE(std::string(error.what()).empty());
  }
}

std::vector<uint8_t> copy_of(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

// ---- learning the form

TEST(StateForm, IsLearned) {
  const StateForm plain = learn(synthetic(0, 5, 0));
  EXPECT_EQ(plain.type, CacheType::F16);
  EXPECT_FALSE(plain.v_transposed);
  EXPECT_EQ(plain.magic, 0xaf143cd8u);
  EXPECT_EQ(plain.row_bytes, 2u * kHeads * kHeadDim);
  EXPECT_EQ(plain.k_rotation, 0u) << "f16 is not rotated";
  EXPECT_TRUE(learn(synthetic(0, 5, 0, true)).v_transposed);
}

TEST(StateForm, RefusesWhatItDoesNotKnow) {
  const auto refused = [](auto change) {
    SyntheticState state = synthetic(0, 5, 0);
    change(state);
    expect_code(KvErrorCode::StateForm, [&] {
      const auto bytes = state.bytes();
      learn_state_form(bytes.data(), bytes.size(), geometry());
    });
  };
  refused([](SyntheticState& state) { state.streams = 2; });
  refused([](SyntheticState& state) { state.type = 0; });
  refused([](SyntheticState& state) { state.type = 30; });
  refused([](SyntheticState& state) { state.extra_cell_bytes = 12; });
  refused([](SyntheticState& state) { state.global_positions.clear(); });
  refused([](SyntheticState& state) { state.window_positions.clear(); });
  refused([](SyntheticState& state) { state.geometry.layers.push_back(LayerKind::Global); });
  refused([](SyntheticState& state) { state.geometry.layers.pop_back(); });
  refused([](SyntheticState& state) { state.geometry.head_dim = 64; });
}

TEST(StateForm, RefusesEveryTruncationAndExtraBytes) {
  const auto bytes = synthetic(0, 3, 0).bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of that size, so that a read beyond it is found.
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    expect_code(KvErrorCode::StateForm, [&] { learn_state_form(cut.data(), cut.size(), geometry()); });
  }
  auto longer = bytes;
  longer.push_back(0);
  expect_code(KvErrorCode::StateForm, [&] { learn_state_form(longer.data(), longer.size(), geometry()); });
}

TEST(StateForm, SurvivesEveryDamagedHeaderByte) {
  const auto bytes = synthetic(0, 3, 0).bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      auto damaged = bytes;
      damaged[i] ^= flip;
      try {
        learn_state_form(damaged.data(), damaged.size(), geometry());  // row data and the magic may pass
      } catch (const KvError&) {
      }
    }
  }
}

TEST(StateForm, KnowsHowQuantizedCachesAreRotated) {
  const auto rotation = [](uint32_t head_dim) {
    Geometry shape{.layers = {LayerKind::Global}, .kv_heads = 2, .head_dim = head_dim};
    const uint64_t row_bytes = shape.row_elements() / 32 * 34;
    std::vector<uint8_t> bytes;
    const auto add = [&](auto value) {
      const auto* begin = reinterpret_cast<const uint8_t*>(&value);
      bytes.insert(bytes.end(), begin, begin + sizeof(value));
    };
    add(uint32_t{1});
    add(int32_t{0});
    for (const uint32_t value : {1, 1, 0, 1, 0, 0, 1}) add(value);  // one stream, one cell, one layer
    for (int tensor = 0; tensor < 2; ++tensor) {
      add(int32_t{8});
      add(row_bytes);
      bytes.resize(bytes.size() + row_bytes);
    }
    const StateForm form = learn_state_form(bytes.data(), bytes.size(), shape);
    EXPECT_EQ(form.type, CacheType::Q8_0);
    return std::pair(form.k_rotation, form.v_rotation);
  };
  EXPECT_EQ(rotation(64), std::pair(64u, 64u));
  EXPECT_EQ(rotation(128), std::pair(128u, 64u));
  EXPECT_EQ(rotation(192), std::pair(64u, 64u));
  EXPECT_EQ(rotation(256), std::pair(256u, 64u));
  EXPECT_EQ(rotation(80), std::pair(0u, 0u));
}

TEST(Geometry, RefusesContradictions) {
  const auto refused = [](auto change) {
    Geometry shape = geometry();
    change(shape);
    expect_code(KvErrorCode::Range, [&] { shape.check(); });
  };
  refused([](Geometry& shape) { shape.layers.clear(); });
  refused([](Geometry& shape) { shape.layers.assign(5000, LayerKind::Window); });
  refused([](Geometry& shape) { shape.kv_heads = 0; });
  refused([](Geometry& shape) { shape.head_dim = 63; });
  refused([](Geometry& shape) { shape.window = 0; });
  refused([](Geometry& shape) { shape.layers = {LayerKind::Global}; });
}

// ---- staging

class Staging : public testing::TestWithParam<std::tuple<bool, bool, uint32_t>> {};

TEST_P(Staging, GivesTheStateThatLlamaCppWrites) {
  const auto [v_transposed, interleaved, step] = GetParam();
  SyntheticState expected = synthetic(100, 140, 124, v_transposed);
  expected.geometry = geometry(interleaved);
  expected.sequence = 7;
  StageBuffer stage(expected.geometry, learn(expected), 100, 140, 124);
  fill(stage, expected.geometry, step);
  EXPECT_TRUE(stage.complete());
  EXPECT_EQ(copy_of(stage.state(7)), expected.bytes());
  expected.sequence = 1;
  EXPECT_EQ(copy_of(stage.state(1)), expected.bytes()) << "the sequence id can change";
}

INSTANTIATE_TEST_SUITE_P(All, Staging,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(1, 7, 16, 1000)));

TEST(Staging, WithoutWindowRowsTheWindowPartIsEmpty) {
  const SyntheticState expected = synthetic(100, 140, 140);
  StageBuffer stage(expected.geometry, learn(synthetic(0, 2, 0)), 100, 140, 140);
  fill(stage, expected.geometry, 40);
  EXPECT_EQ(copy_of(stage.state(3)), expected.bytes());
  const auto row = wire_rows(expected.geometry, 0, Kind::K, 139, 1);
  expect_code(KvErrorCode::Range, [&] { stage.put(0, Kind::K, 139, 1, WireType::F16, row.data(), row.size()); });
}

TEST(Staging, AModelWithoutWindowLayersHasOneCache) {
  SyntheticState expected = synthetic(0, 9, 0);
  expected.geometry.layers = {LayerKind::Global, LayerKind::Global};
  expected.geometry.window = 0;
  StageBuffer stage(expected.geometry, learn(expected), 0, 9, 9);
  fill(stage, expected.geometry, 4);
  EXPECT_EQ(copy_of(stage.state(3)), expected.bytes());
}

TEST(Staging, AModelWithoutGlobalLayersKeepsItsCells) {
  SyntheticState expected = synthetic(0, 9, 0);
  expected.geometry.layers = {LayerKind::Window, LayerKind::Window};
  StageBuffer stage(expected.geometry, learn(expected), 0, 9, 0);
  fill(stage, expected.geometry, 4);
  EXPECT_EQ(copy_of(stage.state(3)), expected.bytes());
}

TEST(Staging, ConvertsBf16) {
  const Geometry shape = geometry();
  const StateForm form = learn(synthetic(0, 2, 0));
  StageBuffer stage(shape, form, 0, 1, 1);
  std::vector<uint16_t> ones(shape.row_elements(), 0x3f80);
  const auto* bytes = reinterpret_cast<const uint8_t*>(ones.data());
  for (const uint32_t layer : {2u, 4u}) {
    for (const Kind kind : {Kind::K, Kind::V}) stage.put(layer, kind, 0, 1, WireType::BF16, bytes, 2 * ones.size());
  }
  const ExportView view(shape, form, copy_of(stage.state(0)), 0, 1, 1);
  std::vector<uint16_t> out(shape.row_elements());
  view.read(2, Kind::K, 0, 1, reinterpret_cast<uint8_t*>(out.data()), 2 * out.size());
  EXPECT_EQ(out, std::vector<uint16_t>(out.size(), 0x3c00));
}

// fault: damaged-restore
TEST(Staging, RefusesBadRangesAndLeavesNothingBehind) {
  const Geometry shape = geometry();
  const StateForm form = learn(synthetic(0, 2, 0));
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 5, 5, 5); });
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 6, 5, 5); });
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 5, 50, 4); });
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 5, 50, 51); });
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 5, 50, 33); });
  expect_code(KvErrorCode::Range, [&] { StageBuffer(shape, form, 0, UINT32_MAX, UINT32_MAX); });

  StageBuffer stage(shape, form, 100, 140, 124);
  const auto rows = wire_rows(shape, 2, Kind::K, 100, 40);
  const size_t row = shape.wire_row_bytes();
  const auto refused = [&](uint32_t layer, uint32_t start, uint32_t count, size_t size) {
    expect_code(KvErrorCode::Range, [&] { stage.put(layer, Kind::K, start, count, WireType::F16, rows.data(), size); });
  };
  refused(5, 100, 1, row);
  refused(2, 99, 1, row);
  refused(2, 139, 2, 2 * row);
  refused(2, 100, 0, 0);
  refused(2, 101, UINT32_MAX, row);
  refused(2, 100, 2, row);
  refused(2, 100, 1, row - 1);
  refused(2, 100, 1, 0);
  refused(0, 123, 1, row);
  stage.put(2, Kind::K, 110, 5, WireType::F16, rows.data(), 5 * row);
  refused(2, 114, 2, 2 * row);
  refused(2, 109, 2, 2 * row);
  refused(2, 100, 40, 40 * row);
  refused(2, 112, 1, row);
  expect_code(KvErrorCode::Sequence, [&] { stage.state(0); });
}

TEST(Staging, ARefusedValueCountsAsAbsent) {
  const Geometry shape = geometry();
  for (const bool v_transposed : {false, true}) {
    SyntheticState expected = synthetic(100, 140, 124, v_transposed);
    StageBuffer stage(shape, learn(expected), 100, 140, 124);
    for (const Kind kind : {Kind::K, Kind::V}) {
      auto bad = wire_rows(shape, 2, kind, 100, 40);
      bad[bad.size() - 1] = 0x7c;  // the last value becomes an infinity or NaN
      bad[bad.size() - 2] = 0x00;
      expect_code(KvErrorCode::ValueInvalid,
                  [&] { stage.put(2, kind, 100, 40, WireType::F16, bad.data(), bad.size()); });
      EXPECT_FALSE(stage.complete());
    }
    fill(stage, shape, 40);
    EXPECT_EQ(copy_of(stage.state(3)), expected.bytes());
  }
}

TEST(Staging, IsCompleteOnlyWithEveryRow) {
  const Geometry shape = geometry();
  StageBuffer stage(shape, learn(synthetic(0, 2, 0)), 0, 3, 1);
  std::vector<std::tuple<uint32_t, Kind, uint32_t>> rows;
  for (uint32_t layer = 0; layer < shape.layers.size(); ++layer) {
    for (const Kind kind : {Kind::K, Kind::V}) {
      for (uint32_t token = shape.layers[layer] == LayerKind::Window ? 1 : 0; token < 3; ++token) {
        rows.emplace_back(layer, kind, token);
      }
    }
  }
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    EXPECT_FALSE(stage.complete());
    EXPECT_THROW(stage.state(0), KvError);
    put_rows(stage, shape, std::get<0>(*row), std::get<1>(*row), std::get<2>(*row), 1);
  }
  EXPECT_TRUE(stage.complete());
}

TEST(TokenCover, MergesAndFindsOverlaps) {
  TokenCover cover;
  cover.add({10, 20});
  cover.add({30, 40});
  EXPECT_FALSE(cover.overlaps({20, 30}));
  EXPECT_FALSE(cover.overlaps({0, 10}));
  EXPECT_TRUE(cover.overlaps({19, 21}));
  EXPECT_TRUE(cover.overlaps({0, 100}));
  EXPECT_TRUE(cover.overlaps({32, 33}));
  cover.add({20, 30});
  EXPECT_TRUE(cover.overlaps({25, 26}));
  EXPECT_FALSE(cover.overlaps({40, 41}));
  cover.add({0, 10});
  cover.add({40, 41});
  for (uint32_t token = 0; token < 41; ++token) EXPECT_TRUE(cover.overlaps({token, token + 1})) << token;
  EXPECT_FALSE(cover.overlaps({41, 50}));
}

TEST(StateMemory, IsReusedWithinItsLimit) {
  release_kept_state_memory();
  constexpr size_t kSize = size_t{20} << 20;
  const uint8_t* first = nullptr;
  {
    StateMemory memory(kSize);
    first = memory.data();
  }
  EXPECT_EQ(kept_state_bytes(), kSize);
  {
    StateMemory again(kSize - 5);
    EXPECT_EQ(again.data(), first);
    EXPECT_EQ(again.size(), kSize - 5);
    EXPECT_EQ(kept_state_bytes(), 0u);
    const StateMemory moved = std::move(again);
    EXPECT_EQ(moved.data(), first);
  }
  EXPECT_EQ(kept_state_bytes(), kSize) << "once, although it was moved";
  { const StateMemory small(1000); }
  EXPECT_EQ(kept_state_bytes(), kSize + 1000) << "a small state does not take a large block";
  {
    std::vector<StateMemory> many;
    for (int i = 0; i < 8; ++i) many.emplace_back(kSize);
  }
  EXPECT_LE(kept_state_bytes(), kKeptStateBytes);
  { const StateMemory huge(kKeptStateBytes + 1); }
  EXPECT_LE(kept_state_bytes(), kKeptStateBytes);
  release_kept_state_memory();
  EXPECT_EQ(kept_state_bytes(), 0u);
}

// ---- exporting

void expect_wire_rows(const ExportView& view, const Geometry& shape) {
  for (uint32_t layer = 0; layer < shape.layers.size(); ++layer) {
    const uint32_t first = shape.layers[layer] == LayerKind::Window ? view.window_start() : view.start();
    if (first == view.end()) continue;
    for (const Kind kind : {Kind::K, Kind::V}) {
      std::vector<uint8_t> out((view.end() - first) * shape.wire_row_bytes());
      EXPECT_EQ(view.read(layer, kind, first, view.end() - first, out.data(), out.size()), out.size());
      EXPECT_EQ(out, wire_rows(shape, layer, kind, first, view.end() - first)) << layer;
      std::vector<uint8_t> one(shape.wire_row_bytes());
      view.read(layer, kind, view.end() - 1, 1, one.data(), one.size());
      EXPECT_EQ(one, wire_rows(shape, layer, kind, view.end() - 1, 1));
    }
  }
}

TEST(Export, ReadsRowsInAnyCellOrder) {
  for (const bool v_transposed : {false, true}) {
    for (const bool interleaved : {false, true}) {
      SyntheticState state = synthetic(100, 171, 160, v_transposed);
      state.geometry = geometry(interleaved);
      const StateForm form = learn(state);
      expect_wire_rows(ExportView(state.geometry, form, state.bytes(), 100, 171, 160), state.geometry);
      // A ring that has wrapped around, then everything in reverse.
      std::rotate(state.global_positions.begin(), state.global_positions.begin() + 30, state.global_positions.end());
      std::rotate(state.window_positions.begin(), state.window_positions.begin() + 3, state.window_positions.end());
      expect_wire_rows(ExportView(state.geometry, form, state.bytes(), 100, 171, 160), state.geometry);
      std::reverse(state.global_positions.begin(), state.global_positions.end());
      std::reverse(state.window_positions.begin(), state.window_positions.end());
      expect_wire_rows(ExportView(state.geometry, form, state.bytes(), 100, 171, 160), state.geometry);
    }
  }
}

TEST(Export, OlderWindowRowsMayBeThere) {
  const SyntheticState state = synthetic(100, 140, 124);
  const StateForm form = learn(state);
  expect_wire_rows(ExportView(state.geometry, form, state.bytes(), 100, 140, 130), state.geometry);
  expect_wire_rows(ExportView(state.geometry, form, state.bytes(), 100, 140, 140), state.geometry);
}

TEST(Export, RefusesMissingDoubleAndStrayRows) {
  const SyntheticState good = synthetic(100, 140, 124);
  const StateForm form = learn(good);
  const auto refused = [&](auto change) {
    SyntheticState state = good;
    change(state);
    expect_code(KvErrorCode::Sequence, [&] { ExportView(state.geometry, form, state.bytes(), 100, 140, 124); });
  };
  refused([](SyntheticState& state) { state.global_positions.erase(state.global_positions.begin() + 5); });
  refused([](SyntheticState& state) { state.window_positions.erase(state.window_positions.begin()); });
  refused([](SyntheticState& state) { state.window_positions.clear(); });
  refused([](SyntheticState& state) { state.global_positions[7] = 106; });
  refused([](SyntheticState& state) { state.window_positions[7] = 124; });
  refused([](SyntheticState& state) { state.global_positions.push_back(140); });
  refused([](SyntheticState& state) { state.global_positions.push_back(99); });
  refused([](SyntheticState& state) { state.window_positions.push_back(99); });
  expect_code(KvErrorCode::Range, [&] { ExportView(good.geometry, form, good.bytes(), 140, 140, 140); });
  expect_code(KvErrorCode::Range, [&] { ExportView(good.geometry, form, good.bytes(), 100, 140, 99); });
}

TEST(Export, RefusesDamagedStates) {
  const SyntheticState good = synthetic(100, 103, 100);
  const StateForm form = learn(good);
  const auto bytes = good.bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(ExportView(good.geometry, form, cut, 100, 103, 100), KvError);
  }
  for (size_t i = 0; i < 60; ++i) {
    auto damaged = bytes;
    damaged[i] ^= 0xff;
    EXPECT_THROW(ExportView(good.geometry, form, damaged, 100, 103, 100), KvError) << i;
  }
}

TEST(Export, RefusesReadsOutside) {
  const SyntheticState state = synthetic(100, 140, 130);
  const ExportView view(state.geometry, learn(state), state.bytes(), 100, 140, 130);
  std::vector<uint8_t> out(40 * state.geometry.wire_row_bytes());
  const auto refused = [&](uint32_t layer, uint32_t start, uint32_t count, size_t capacity) {
    expect_code(KvErrorCode::Range, [&] { view.read(layer, Kind::V, start, count, out.data(), capacity); });
  };
  refused(5, 100, 1, out.size());
  refused(2, 99, 1, out.size());
  refused(2, 140, 1, out.size());
  refused(2, 100, 0, out.size());
  refused(2, 101, UINT32_MAX, out.size());
  refused(0, 129, 1, out.size());
  refused(2, 100, 2, 2 * state.geometry.wire_row_bytes() - 1);
}

TEST(Export, RefusesValuesThatAreNotFinite) {
  const SyntheticState state = synthetic(0, 1, 0);
  const StateForm form = learn(state);
  auto bytes = state.bytes();
  bytes[bytes.size() - 1] = 0x7c;  // the last V of the last window layer
  const ExportView view(state.geometry, form, bytes, 0, 1, 0);
  std::vector<uint8_t> out(state.geometry.wire_row_bytes());
  expect_code(KvErrorCode::ValueInvalid, [&] { view.read(3, Kind::V, 0, 1, out.data(), out.size()); });
}

TEST(Export, FindsTheWindowThatIsStillThere) {
  SyntheticState state = synthetic(0, 40, 24);
  const StateForm form = learn(state);
  const auto run = [&] {
    const TokenRange range = window_rows_in(state.geometry, form, state.window_bytes());
    return std::pair(range.start, range.end);
  };
  EXPECT_EQ(run(), std::pair(24u, 40u));
  std::reverse(state.window_positions.begin(), state.window_positions.end());
  EXPECT_EQ(run(), std::pair(24u, 40u));
  state.window_positions.erase(state.window_positions.begin() + 9);  // row 30
  EXPECT_EQ(run(), std::pair(31u, 40u));
  state.window_positions.clear();
  EXPECT_EQ(run(), std::pair(0u, 0u));
  auto bytes = synthetic(0, 40, 24).window_bytes();
  bytes.pop_back();
  expect_code(KvErrorCode::StateForm, [&] { window_rows_in(state.geometry, form, bytes); });
}

}  // namespace
}  // namespace muser::kv
