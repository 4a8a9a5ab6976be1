#include "output.h"

#include <algorithm>
#include <cstdint>

namespace muser {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  int length;        ///< bytes of the character; 0 = no character starts so
  uint8_t low, high;  ///< what its second byte may be
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

/// Moves what is complete from `bytes` to `text`; leaves the start of a character that may still go on.
void decode(std::string& bytes, std::string& text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Lead lead = lead_of(static_cast<uint8_t>(bytes[at]));
    size_t valid = 1;
    while (valid < static_cast<size_t>(lead.length) && at + valid < bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[at + valid]);
      const bool fits = valid == 1 ? byte >= lead.low && byte <= lead.high : byte >= 0x80 && byte <= 0xBF;
      if (!fits) break;
      ++valid;
    }
    if (valid == static_cast<size_t>(lead.length)) {
      text.append(bytes, at, valid);
    } else if (lead.length != 0 && at + valid == bytes.size()) {
      break;
    } else {
      text.append(kReplacement);
    }
    at += valid;
  }
  bytes.erase(0, at);
}

}  // namespace

std::string OutputText::push(std::string_view bytes) {
  if (stopped_) return {};
  incomplete_.append(bytes);
  decode(incomplete_, held_);
  return take_certain();
}

std::string OutputText::take_certain() {
  size_t found = std::string::npos;
  for (const std::string& stop : stop_strings_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    std::string text = held_.substr(0, found);
    held_.clear();
    incomplete_.clear();
    return text;
  }
  size_t keep = 0;
  for (const std::string& stop : stop_strings_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) keep = length;
    }
  }
  // `held_` ends with a whole character, so what is kept and what goes out do too.
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return text;
}

std::string OutputText::finish(bool cut) {
  if (stopped_) return {};
  std::string text = std::move(held_);
  if (!incomplete_.empty() && !cut) text.append(kReplacement);
  held_.clear();
  incomplete_.clear();
  return text;
}

}  // namespace muser
