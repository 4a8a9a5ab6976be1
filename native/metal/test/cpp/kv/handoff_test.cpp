// The whole way with a real model: rows exported from one context, put on the wire, installed in another, decoded.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>

#include "ledger.h"
#include "llama_fixture.h"

namespace muser::kv {
namespace {

constexpr uint32_t kGreedyTokens = 32;
constexpr uint32_t kLongChunk = 2048;

/// One chunk's rows in wire form, as a sender would have them.
struct WireChunk {
  TokenRange tokens;
  uint32_t window_start;
  std::vector<std::vector<uint8_t>> parts;  ///< K, V of each layer; empty without rows.

  uint32_t first_row(const Geometry& geometry, uint32_t layer) const {
    return geometry.layers[layer] == LayerKind::Window ? window_start : tokens.start;
  }
  std::vector<uint8_t>& part(uint32_t layer, Kind kind) { return parts[2 * layer + (kind == Kind::V ? 1 : 0)]; }
};

uint32_t window_start_of(const Geometry& geometry, TokenRange chunk) {
  if (!geometry.has_window()) return chunk.end;
  return chunk.count() > geometry.window ? chunk.end - geometry.window : chunk.start;
}

WireChunk read_chunk(const ExportView& view, const Geometry& geometry) {
  WireChunk chunk{{view.start(), view.end()}, view.window_start(), {}};
  for (uint32_t layer = 0; layer < geometry.layers.size(); ++layer) {
    const uint32_t first = chunk.first_row(geometry, layer);
    for (const Kind kind : {Kind::K, Kind::V}) {
      auto& bytes = chunk.parts.emplace_back((view.end() - first) * geometry.wire_row_bytes());
      if (!bytes.empty()) view.read(layer, kind, first, view.end() - first, bytes.data(), bytes.size());
    }
  }
  return chunk;
}

StageBuffer stage_of(const WireChunk& chunk, const Geometry& geometry, const StateForm& form) {
  StageBuffer stage(geometry, form, chunk.tokens.start, chunk.tokens.end, chunk.window_start);
  for (uint32_t layer = 0; layer < geometry.layers.size(); ++layer) {
    const uint32_t first = chunk.first_row(geometry, layer);
    for (const Kind kind : {Kind::K, Kind::V}) {
      const auto& bytes = chunk.parts[2 * layer + (kind == Kind::V ? 1 : 0)];
      if (bytes.empty()) continue;
      stage.put(layer, kind, first, chunk.tokens.end - first, WireType::F16, bytes.data(), bytes.size());
    }
  }
  return stage;
}

/// Prefills all but the last token, exporting each chunk as soon as it is computed.
std::vector<WireChunk> prefill_and_export(TestContext& source, const Tokens& prompt, uint32_t chunk,
                                          llama_seq_id sequence = 0) {
  std::vector<WireChunk> chunks;
  SequenceLedger ledger(source.geometry());
  const auto last = static_cast<uint32_t>(prompt.size()) - 1;
  for (uint32_t start = 0; start < last; start += chunk) {
    const uint32_t end = std::min(last, start + chunk);
    source.decode(prompt, start, end, chunk, sequence);
    ledger.after_decode(end - start);
    const uint32_t window_start = window_start_of(source.geometry(), {start, end});
    EXPECT_EQ(ledger.can_export(start, end, window_start), "");
    chunks.push_back(
        read_chunk(source.export_range(start, end, window_start, sequence), source.geometry()));
  }
  return chunks;
}

void install_all(TestContext& target, const std::vector<WireChunk>& chunks, llama_seq_id sequence = 0) {
  SequenceLedger ledger(target.geometry());
  for (const WireChunk& chunk : chunks) {
    ASSERT_EQ(ledger.can_install(chunk.tokens.start, chunk.tokens.end, chunk.window_start), "");
    StageBuffer stage = stage_of(chunk, target.geometry(), target.form());
    ASSERT_TRUE(target.install(stage, sequence));
    ledger.after_install(chunk.tokens.start, chunk.tokens.end, chunk.window_start);
  }
  EXPECT_EQ(ledger.can_decode(1), "");
}

Logits last_token_logits(TestContext& context, const Tokens& prompt, llama_seq_id sequence = 0) {
  const auto count = static_cast<uint32_t>(prompt.size());
  context.decode(prompt, count - 1, count, 1, sequence, true);
  return context.logits();
}

// ---- the right way

struct Case {
  const char* name;
  ContextOptions options;
  float tolerance;  ///< Of the first logits.
  bool same_tokens;

  friend std::ostream& operator<<(std::ostream& out, const Case& mode) { return out << mode.name; }
};

const Case kPlain{"f16", {}, 0.01f, true};
const Case kFlash{"flash", {.flash_attention = true}, 0.6f, false};
const Case kQuantized{"q8_0", {.flash_attention = true, .cache_type = GGML_TYPE_Q8_0}, 0.6f, false};

class Handoff : public testing::TestWithParam<std::tuple<Case, uint32_t, uint32_t>> {};

TEST_P(Handoff, DecodesAsALocalPrefillDoes) {
  const auto& [mode, prompt_tokens, chunk] = GetParam();
  const Tokens prompt = needle_prompt(prompt_tokens);
  TestContext source(muse_nano(), mode.options);
  TestContext target(muse_nano(), mode.options);
  install_all(target, prefill_and_export(source, prompt, chunk));

  const Logits local = last_token_logits(source, prompt);
  const Logits remote = last_token_logits(target, prompt);
  const float difference = largest_difference(local, remote);
  RecordProperty("difference", std::to_string(difference));
  EXPECT_LE(difference, mode.tolerance);
  EXPECT_EQ(argmax(local), argmax(remote));
  if (mode.same_tokens) {
    EXPECT_EQ(source.greedy(prompt_tokens, kGreedyTokens), target.greedy(prompt_tokens, kGreedyTokens));
  }
}

std::string case_name(const testing::TestParamInfo<Handoff::ParamType>& info) {
  const auto& [mode, prompt_tokens, chunk] = info.param;
  return std::string(mode.name) + "_" + std::to_string(prompt_tokens) + "_by_" + std::to_string(chunk);
}

const auto kModes = testing::Values(kPlain, kFlash, kQuantized);
INSTANTIATE_TEST_SUITE_P(Short, Handoff,
                         testing::Combine(kModes, testing::Values(2, 3, 511, 512, 513, 2049),
                                          testing::Values(512, kLongChunk, 7)),
                         case_name);
// A prompt of many chunks; of each mode one size of chunk, since the short ones have all.
INSTANTIATE_TEST_SUITE_P(LongPlain, Handoff,
                         testing::Combine(testing::Values(kPlain), testing::Values(8000), testing::Values(512)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(LongFlash, Handoff,
                         testing::Combine(testing::Values(kFlash, kQuantized), testing::Values(8000),
                                          testing::Values(kLongChunk)),
                         case_name);

TEST(HandoffAnswer, FindsTheNeedle) {
  const Tokens prompt = needle_prompt(2049);
  TestContext source(muse_nano(), {});
  TestContext target(muse_nano(), {});
  install_all(target, prefill_and_export(source, prompt, 512));
  last_token_logits(target, prompt);
  std::string answer;
  for (const llama_token token : target.greedy(2049, 24)) {
    char piece[64];
    const int32_t length =
        llama_token_to_piece(llama_model_get_vocab(muse_nano().get()), token, piece, sizeof(piece), 0, false);
    if (length > 0) answer.append(piece, static_cast<size_t>(length));
  }
  EXPECT_NE(answer.find("amber-falcon-42"), std::string::npos) << answer;
}

TEST(HandoffSequences, SeveralAtOnceInOneContext) {
  // Two sequences take turns on both sides, so that their cells are mixed.
  constexpr uint32_t kTokens = 1500;
  constexpr uint32_t kChunk = 300;
  const ContextOptions options{.sequences = 2};
  TestContext source(muse_nano(), options);
  TestContext target(muse_nano(), options);
  Tokens prompts[2] = {needle_prompt(kTokens), needle_prompt(kTokens)};
  std::swap(prompts[1][100], prompts[1][200]);
  for (uint32_t start = 0; start < kTokens - 1; start += kChunk) {
    const uint32_t end = std::min(kTokens - 1, start + kChunk);
    for (const llama_seq_id sequence : {0, 1}) {
      source.decode(prompts[sequence], start, end, kChunk, sequence);
      const auto chunk = read_chunk(source.export_range(start, end, start, sequence), source.geometry());
      StageBuffer stage = stage_of(chunk, target.geometry(), target.form());
      ASSERT_TRUE(target.install(stage, sequence));
    }
  }
  for (const llama_seq_id sequence : {0, 1}) {
    const Logits local = last_token_logits(source, prompts[sequence], sequence);
    EXPECT_LE(largest_difference(local, last_token_logits(target, prompts[sequence], sequence)), 0.01f);
  }
}

// ---- what goes wrong must show

/// Installs a 2,049-token prompt in chunks of 512 after `damage`, and returns how far the first logits are off.
float difference_after(const std::function<void(TestContext& target, std::vector<WireChunk>& chunks)>& install) {
  const Tokens prompt = needle_prompt(2049);
  TestContext source(muse_nano(), {});
  TestContext target(muse_nano(), {});
  std::vector<WireChunk> chunks = prefill_and_export(source, prompt, 512);
  install(target, chunks);
  return largest_difference(last_token_logits(source, prompt), last_token_logits(target, prompt));
}

constexpr float kRight = 0.01f;  ///< What a right hand-off may differ by.
constexpr float kSeen = 0.1f;    ///< What a wrong one differs by at least.

TEST(HandoffMutation, NoneIsTheBaseline) {
  EXPECT_LE(difference_after([](TestContext& target, auto& chunks) { install_all(target, chunks); }), kRight);
}

TEST(HandoffMutation, KWithoutPermutation) {
  const float difference = difference_after([](TestContext& target, auto& chunks) {
    Geometry wrong = target.geometry();
    wrong.k_interleaved = false;
    for (const auto& chunk : chunks) {
      StageBuffer stage = stage_of(chunk, wrong, target.form());
      ASSERT_TRUE(target.install(stage));
    }
  });
  EXPECT_GT(difference, kSeen);
}

TEST(HandoffMutation, KAndVSwapped) {
  const float difference = difference_after([](TestContext& target, auto& chunks) {
    for (auto& chunk : chunks) {
      for (uint32_t layer = 0; layer < target.geometry().layers.size(); ++layer) {
        std::swap(chunk.part(layer, Kind::K), chunk.part(layer, Kind::V));
      }
    }
    install_all(target, chunks);
  });
  EXPECT_GT(difference, kSeen);
}

TEST(HandoffMutation, ChunkDropped) {
  const float difference = difference_after([](TestContext& target, auto& chunks) {
    chunks.erase(chunks.begin());
    SequenceLedger ledger(target.geometry());
    EXPECT_NE(ledger.can_install(chunks[0].tokens.start, chunks[0].tokens.end, chunks[0].window_start), "");
    for (const auto& chunk : chunks) {
      StageBuffer stage = stage_of(chunk, target.geometry(), target.form());
      ASSERT_TRUE(target.install(stage));
    }
  });
  EXPECT_GT(difference, kSeen);
}

TEST(HandoffMutation, HeadsSwapped) {
  const float difference = difference_after([](TestContext& target, auto& chunks) {
    const size_t head_bytes = 2 * target.geometry().head_dim;
    for (auto& chunk : chunks) {
      for (auto& part : chunk.parts) {
        for (size_t row = 0; row < part.size(); row += 2 * head_bytes) {
          std::swap_ranges(part.begin() + static_cast<ptrdiff_t>(row),
                           part.begin() + static_cast<ptrdiff_t>(row + head_bytes),
                           part.begin() + static_cast<ptrdiff_t>(row + head_bytes));
        }
      }
    }
    install_all(target, chunks);
  });
  EXPECT_GT(difference, kSeen);
}

/// Window rows of the last chunk only from `window_start` on, everything else right.
float difference_with_window_from(uint32_t window_start, bool ledger_allows) {
  return difference_after([&](TestContext& target, auto& chunks) {
    SequenceLedger ledger(target.geometry());
    for (auto& chunk : chunks) {
      const bool is_last = &chunk == &chunks.back();
      const uint32_t wanted = is_last ? window_start : chunk.tokens.end;
      for (uint32_t layer = 0; layer < target.geometry().layers.size(); ++layer) {
        if (target.geometry().layers[layer] != LayerKind::Window) continue;
        for (const Kind kind : {Kind::K, Kind::V}) {
          auto& part = chunk.part(layer, kind);
          const size_t drop = (wanted - chunk.window_start) * target.geometry().wire_row_bytes();
          part.erase(part.begin(), part.begin() + static_cast<ptrdiff_t>(drop));
        }
      }
      chunk.window_start = wanted;
      StageBuffer stage = stage_of(chunk, target.geometry(), target.form());
      ASSERT_TRUE(target.install(stage));
      ledger.after_install(chunk.tokens.start, chunk.tokens.end, chunk.window_start);
    }
    EXPECT_EQ(ledger.decodable(), ledger_allows);
  });
}

// fault: window-overwritten
TEST(HandoffWindow, ExactlyWindowMinusOneRowsAreNeeded) {
  // The last token is at 2,048 and sees rows 1,537 to 2,048.
  EXPECT_LE(difference_with_window_from(1536, true), kRight);
  EXPECT_LE(difference_with_window_from(1537, true), kRight);
  EXPECT_GT(difference_with_window_from(1538, false), 0.0f);
  EXPECT_GT(difference_with_window_from(1900, false), kSeen);
  EXPECT_GT(difference_with_window_from(2048, false), kSeen);
}

TEST(HandoffMutation, OneWindowRowLost) {
  const float difference = difference_after([](TestContext& target, auto& chunks) {
    const size_t row = target.geometry().wire_row_bytes();
    for (uint32_t layer = 0; layer < target.geometry().layers.size(); ++layer) {
      if (target.geometry().layers[layer] != LayerKind::Window) continue;
      for (const Kind kind : {Kind::K, Kind::V}) {
        auto& part = chunks.back().part(layer, kind);
        std::fill(part.end() - static_cast<ptrdiff_t>(row), part.end(), 0);
      }
    }
    install_all(target, chunks);
  });
  EXPECT_GT(difference, kSeen);
}

TEST(HandoffMutation, QuantizedWithoutRotation) {
  const ContextOptions options{.flash_attention = true, .cache_type = GGML_TYPE_Q8_0};
  const Tokens prompt = needle_prompt(600);
  TestContext source(muse_nano(), options);
  TestContext target(muse_nano(), options);
  ASSERT_EQ(target.form().k_rotation, 64u);
  const auto chunks = prefill_and_export(source, prompt, 512);
  StateForm wrong = target.form();
  wrong.k_rotation = 0;
  for (const auto& chunk : chunks) {
    StageBuffer stage = stage_of(chunk, target.geometry(), wrong);
    ASSERT_TRUE(target.install(stage));
  }
  EXPECT_GT(largest_difference(last_token_logits(source, prompt), last_token_logits(target, prompt)), kSeen);
}

// ---- rollback

TEST(HandoffRollback, TheWindowThatIsStillThereCanBeSeen) {
  constexpr uint32_t kLength = 1200;
  constexpr uint32_t kBack = 900;
  const Tokens prompt = needle_prompt(kLength);
  TestContext context(muse_nano(), {});
  context.decode(prompt, 0, kLength, 512);
  SequenceLedger ledger(context.geometry());
  ledger.after_decode(kLength);
  EXPECT_NE(ledger.can_truncate(kBack), "");

  const auto seen_below = [&](uint32_t position) {
    llama_memory_seq_cp(context.memory(), 0, context.spare(), 0, static_cast<llama_pos>(position));
    const auto state = context.state_of(context.spare(), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    llama_memory_seq_rm(context.memory(), context.spare(), -1, -1);
    return window_rows_in(context.geometry(), context.form(), state);
  };
  const TokenRange seen = seen_below(kBack);
  EXPECT_EQ(seen.end, kBack);
  ASSERT_EQ(ledger.can_truncate(kBack, seen), "");
  ledger.after_truncate(kBack, seen);
  llama_memory_seq_rm(context.memory(), 0, static_cast<llama_pos>(kBack), -1);
  context.decode(prompt, kBack, kBack + 1, 1, 0, true);

  TestContext fresh(muse_nano(), {});
  fresh.decode(prompt, 0, kBack, 512);
  fresh.decode(prompt, kBack, kBack + 1, 1, 0, true);
  EXPECT_LE(largest_difference(context.logits(), fresh.logits()), kRight);

  // After much more the window of a far-back position is gone, and that shows.
  const Tokens longer = needle_prompt(6000);
  llama_memory_clear(context.memory(), true);
  context.decode(longer, 0, 6000, 512);
  SequenceLedger long_ledger(context.geometry());
  long_ledger.after_decode(6000);
  EXPECT_NE(long_ledger.can_truncate(3000, seen_below(3000)), "");
}

// ---- other models

class GlobalModel : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("muser-global-" + std::to_string(GetParam()) + "-" + std::to_string(::getpid()) + ".gguf");
    write_global_model(path_, GetParam());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

Tokens counting_tokens(uint32_t count) {
  Tokens tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = static_cast<llama_token>((i * 37 + i / 7) % 256);
  return tokens;
}

TEST_P(GlobalModel, HandsOff) {
  const TestModel model(path_);
  ASSERT_FALSE(model.geometry().has_window());
  const Tokens prompt = counting_tokens(700);
  for (const auto& [options, tolerance] :
       {std::pair(ContextOptions{.cells = 1024}, 0.001f),
        std::pair(ContextOptions{.flash_attention = true, .cells = 1024}, 0.1f),
        std::pair(ContextOptions{.flash_attention = true, .cache_type = GGML_TYPE_Q8_0, .cells = 1024}, 0.2f)}) {
    TestContext source(model, options);
    TestContext target(model, options);
    install_all(target, prefill_and_export(source, prompt, 256));
    EXPECT_LE(largest_difference(last_token_logits(source, prompt), last_token_logits(target, prompt)), tolerance);
  }
}

TEST_P(GlobalModel, QuantizedRowsAreTheF16RowsRotated) {
  // Layer 0 does not depend on the cache, so both contexts compute the same rows; only the cache's form differs.
  const TestModel model(path_);
  const Tokens prompt = counting_tokens(64);
  const size_t elements = model.geometry().row_elements() * 63;
  std::vector<uint16_t> rows[2][2];
  for (const bool quantized : {false, true}) {
    const ggml_type type = quantized ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    TestContext context(model, {.flash_attention = true, .cache_type = type, .cells = 512});
    context.decode(prompt, 0, 63, 63);
    const ExportView view = context.export_range(0, 63, 63);
    for (const Kind kind : {Kind::K, Kind::V}) {
      auto& out = rows[quantized][kind == Kind::V];
      out.resize(elements);
      view.read(0, kind, 0, 63, reinterpret_cast<uint8_t*>(out.data()), 2 * elements);
    }
  }
  for (const size_t kind : {0, 1}) {
    float largest = 0;
    float error = 0;
    for (size_t i = 0; i < elements; ++i) {
      const float exact = ggml_fp16_to_fp32(rows[0][kind][i]);
      largest = std::max(largest, std::fabs(exact));
      error = std::max(error, std::fabs(exact - ggml_fp16_to_fp32(rows[1][kind][i])));
    }
    EXPECT_GT(largest, 1.0f);
    EXPECT_LT(error, largest / 40) << (kind == 0 ? "K" : "V");
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDimensions, GlobalModel, testing::Values(64, 96, 128, 192, 256));

}  // namespace
}  // namespace muser::kv
