#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muser {

/// Turns the bytes of tokens into text that only ever grows: valid UTF-8, no character cut in two, and nothing of a
/// stop string. What may still become either is held back.
class OutputText {
 public:
  explicit OutputText(std::vector<std::string> stop_strings) : stop_strings_(std::move(stop_strings)) {}

  /// Text that is certain now. Bytes that are no UTF-8 become U+FFFD, as in a TextDecoder.
  std::string push(std::string_view bytes);

  /// A stop string was found; everything from its first byte on is dropped, and so is all that follows.
  bool stopped() const { return stopped_; }

  /// What was held back. `cut`: generation ended at a limit, so half a character at the end is dropped, not replaced.
  std::string finish(bool cut);

 private:
  std::string take_certain();

  std::vector<std::string> stop_strings_;
  std::string incomplete_;  ///< the bytes of a character that has not ended
  std::string held_;        ///< valid text that may be the start of a stop string
  bool stopped_ = false;
};

}  // namespace muser
