#include "output.h"

#include <gtest/gtest.h>

#include <random>

namespace muser {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string fed(OutputText& output, std::string_view bytes, size_t step) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += step) text += output.push(bytes.substr(at, step));
  return text;
}

TEST(OutputText, HoldsHalfACharacterBack) {
  OutputText output({});
  EXPECT_EQ(output.push("\xF0\x9F"), "");
  EXPECT_EQ(output.push("\x91"), "");
  EXPECT_EQ(output.push("\x8D!"), "\xF0\x9F\x91\x8D!");
}

TEST(OutputText, DropsHalfACharacterAtALimitAndReplacesItAtAStop) {
  OutputText cut({});
  EXPECT_EQ(cut.push("a\xC3"), "a");
  EXPECT_EQ(cut.finish(true), "");
  OutputText stopped({});
  EXPECT_EQ(stopped.push("a\xC3"), "a");
  EXPECT_EQ(stopped.finish(false), kReplacement);
}

/// As the WHATWG decoder: one replacement for each maximal part of a character, none for what is valid.
TEST(OutputText, ReplacesBytesThatAreNoUtf8) {
  const std::pair<std::string, std::string> cases[] = {
      {"\x80", kReplacement},
      {"a\xFF""b", std::string("a") + kReplacement + "b"},
      {"\xC0\xAF", std::string(kReplacement) + kReplacement},
      {"\xE2\x82x", std::string(kReplacement) + "x"},
      {"\xED\xA0\x80", std::string(kReplacement) + kReplacement + kReplacement},
      {"\xF0\x9F\x91z", std::string(kReplacement) + "z"},
      {"\xF5\x80", std::string(kReplacement) + kReplacement},
  };
  for (const auto& [bytes, expected] : cases) {
    for (const size_t step : {1, 2, 3, 8}) {
      OutputText output({});
      std::string text = fed(output, bytes, step);
      text += output.finish(false);
      EXPECT_EQ(text, expected) << step;
    }
  }
}

TEST(OutputText, IsTheSameHoweverTheBytesAreCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (int i = 0; i < 60; ++i) {
      bytes.push_back(static_cast<char>(random() % 4 != 0 ? 0xC0 + random() % 64 : random() % 256));
    }
    OutputText whole({"\xC3\xA9x"});
    std::string expected = whole.push(bytes);
    expected += whole.finish(false);
    for (const size_t step : {1, 2, 5}) {
      OutputText pieces({"\xC3\xA9x"});
      std::string text = fed(pieces, bytes, step);
      text += pieces.finish(false);
      ASSERT_EQ(text, expected) << "round " << round << " step " << step;
    }
  }
}

TEST(OutputText, NeverShowsAPartOfAStopString) {
  OutputText output({"<end>", "</s>"});
  EXPECT_EQ(output.push("ab<"), "ab");
  EXPECT_EQ(output.push("/x<en"), "</x");
  EXPECT_FALSE(output.stopped());
  EXPECT_EQ(output.push("d>more"), "");
  EXPECT_TRUE(output.stopped());
  EXPECT_EQ(output.push("x"), "");
  EXPECT_EQ(output.finish(false), "");
}

TEST(OutputText, TakesTheEarliestOfSeveralStopStrings) {
  OutputText output({"ccc", "bc"});
  EXPECT_EQ(output.push("abcccc"), "a");
  EXPECT_TRUE(output.stopped());
}

TEST(OutputText, ShowsWhatWasHeldBackWhenNothingFollows) {
  OutputText output({"stop"});
  EXPECT_EQ(output.push("a sto"), "a ");
  EXPECT_EQ(output.finish(true), "sto");
}

}  // namespace
}  // namespace muser
