#include "ledger.h"

#include <gtest/gtest.h>

namespace muser::kv {
namespace {

constexpr uint32_t kWindow = 8;

Geometry geometry(uint32_t window = kWindow) {
  Geometry result{.layers = {LayerKind::Window, LayerKind::Global}, .kv_heads = 1, .head_dim = 64, .window = window};
  if (window == 0) result.layers = {LayerKind::Global};
  return result;
}

SequenceLedger decoded(uint32_t tokens) {
  SequenceLedger ledger(geometry());
  ledger.after_decode(tokens);
  return ledger;
}

TEST(Ledger, DecodesFromNothing) {
  SequenceLedger ledger(geometry());
  EXPECT_EQ(ledger.can_decode(1), "");
  EXPECT_NE(ledger.can_decode(0), "");
  ledger.after_decode(100);
  EXPECT_EQ(ledger.position(), 100u);
  EXPECT_EQ(ledger.window().start, 92u);
  EXPECT_EQ(ledger.window().end, 100u);
  EXPECT_NE(ledger.can_decode(UINT32_MAX), "") << "the position would overflow";
}

TEST(Ledger, InstallsOnlyTheNextRows) {
  SequenceLedger ledger(geometry());
  ledger.after_install(0, 20, 12);
  EXPECT_NE(ledger.can_install(0, 20, 12), "") << "twice";
  EXPECT_NE(ledger.can_install(19, 30, 22), "") << "overlapping";
  EXPECT_NE(ledger.can_install(21, 30, 22), "") << "a gap";
  EXPECT_NE(ledger.can_install(20, 20, 20), "") << "nothing";
  EXPECT_NE(ledger.can_install(20, 30, 19), "") << "window rows before the chunk";
  EXPECT_NE(ledger.can_install(20, 30, 31), "") << "window rows after the chunk";
  EXPECT_NE(ledger.can_install(20, 30, 21), "") << "more than a window";
  EXPECT_EQ(ledger.can_install(20, 30, 22), "");
  EXPECT_THROW(ledger.after_install(0, 20, 12), KvError);
  EXPECT_EQ(ledger.position(), 20u) << "a refused step changes nothing";
}

TEST(Ledger, DecodeNeedsWindowMinusOneRows) {
  SequenceLedger enough(geometry());
  enough.after_install(0, 20, 20);
  enough.after_install(20, 27, 20);  // seven rows: a token at 27 sees 20 to 26 and itself
  EXPECT_EQ(enough.can_decode(1), "");

  SequenceLedger too_few(geometry());
  too_few.after_install(0, 20, 20);
  too_few.after_install(20, 26, 20);
  EXPECT_NE(too_few.can_decode(1), "") << "row 19 is missing";
  EXPECT_FALSE(too_few.decodable());
}

TEST(Ledger, WindowRowsOfChunksAddUp) {
  SequenceLedger ledger(geometry());
  for (uint32_t start = 0; start < 30; start += 3) ledger.after_install(start, start + 3, start);
  EXPECT_EQ(ledger.can_decode(1), "");
  EXPECT_EQ(ledger.window().start, 22u);
}

TEST(Ledger, ASkippedWindowIsAGapUntilAWholeWindowFollows) {
  SequenceLedger ledger(geometry());
  ledger.after_install(0, 20, 12);
  EXPECT_TRUE(ledger.decodable());
  ledger.after_install(20, 24, 24);
  EXPECT_FALSE(ledger.decodable());
  ledger.after_install(24, 28, 24);
  EXPECT_FALSE(ledger.decodable());
  ledger.after_install(28, 31, 28);
  EXPECT_TRUE(ledger.decodable());
  EXPECT_EQ(ledger.window().start, 24u);
}

TEST(Ledger, InstallsAfterDecodesAndDecodesAfterInstalls) {
  SequenceLedger ledger = decoded(10);
  ledger.after_install(10, 15, 10);
  EXPECT_EQ(ledger.can_decode(3), "");
  ledger.after_decode(3);
  EXPECT_EQ(ledger.can_install(18, 30, 22), "");
}

TEST(Ledger, ExportsWhatIsThere) {
  const SequenceLedger ledger = decoded(100);
  EXPECT_EQ(ledger.can_export(0, 100, 92), "");
  EXPECT_EQ(ledger.can_export(0, 50, 50), "") << "global rows are there for good";
  EXPECT_NE(ledger.can_export(0, 100, 91), "") << "older than the window";
  EXPECT_NE(ledger.can_export(0, 50, 49), "") << "older than the window";
  EXPECT_EQ(ledger.can_export(90, 95, 92), "");
  EXPECT_NE(ledger.can_export(0, 101, 101), "") << "beyond the end";
  EXPECT_NE(ledger.can_export(10, 10, 10), "") << "nothing";
  EXPECT_NE(ledger.can_export(95, 100, 94), "") << "window rows before the range";
}

// fault: window-overwritten
TEST(Ledger, TruncatesOnlyWhileTheWindowReaches) {
  EXPECT_EQ(decoded(7).can_truncate(3), "");
  EXPECT_EQ(decoded(100).can_truncate(100), "");
  EXPECT_EQ(decoded(100).can_truncate(0), "");
  EXPECT_NE(decoded(100).can_truncate(99), "") << "another sequence may have taken row 92";
  EXPECT_NE(decoded(100).can_truncate(101), "");
  EXPECT_NE(decoded(100).can_truncate(50), "");
  EXPECT_THROW(decoded(100).after_truncate(50), KvError);
}

TEST(Ledger, TruncatesToWhatWasSeen) {
  SequenceLedger ledger = decoded(100);
  EXPECT_EQ(ledger.can_truncate(90, TokenRange{83, 90}), "");
  EXPECT_NE(ledger.can_truncate(90, TokenRange{84, 90}), "") << "one row too few";
  EXPECT_NE(ledger.can_truncate(90, TokenRange{80, 89}), "") << "a gap before the position";
  ledger.after_truncate(90, TokenRange{83, 90});
  EXPECT_EQ(ledger.position(), 90u);
  EXPECT_EQ(ledger.window().start, 83u);
  EXPECT_TRUE(ledger.decodable());
}

TEST(Ledger, TruncatingToNothingStartsAnew) {
  SequenceLedger ledger = decoded(100);
  ledger.after_truncate(0);
  EXPECT_EQ(ledger.position(), 0u);
  EXPECT_TRUE(ledger.decodable());
  EXPECT_EQ(ledger.can_install(0, 4, 0), "");
}

TEST(Ledger, ForksWholeSequences) {
  EXPECT_NE(SequenceLedger(geometry()).can_fork(), "");
  SequenceLedger incomplete(geometry());
  incomplete.after_install(0, 20, 20);
  EXPECT_NE(incomplete.can_fork(), "");
  EXPECT_THROW(incomplete.forked(), KvError);
  const SequenceLedger fork = decoded(100).forked();
  EXPECT_EQ(fork.position(), 100u);
  EXPECT_EQ(fork.window().start, 93u);
  EXPECT_TRUE(fork.decodable());
}

TEST(Ledger, WithoutWindowLayersOnlyGlobalRowsCount) {
  SequenceLedger ledger(geometry(0));
  ledger.after_install(0, 20, 20);
  EXPECT_TRUE(ledger.decodable());
  ledger.after_decode(5);
  EXPECT_EQ(ledger.can_truncate(3), "");
  ledger.after_truncate(3);
  EXPECT_EQ(ledger.can_export(0, 3, 3), "");
  EXPECT_EQ(ledger.can_fork(), "");
  EXPECT_NE(ledger.can_install(0, 20, 20), "");
}

}  // namespace
}  // namespace muser::kv
