#include "ledger.h"

#include <algorithm>

namespace muser::kv {

namespace {

std::string text(TokenRange range) {
  return "[" + std::to_string(range.start) + ", " + std::to_string(range.end) + ")";
}

void require_allowed(const std::string& reason) {
  if (!reason.empty()) throw KvError(KvErrorCode::Sequence, reason);
}

}  // namespace

SequenceLedger::SequenceLedger(const Geometry& geometry)
    : window_tokens_(geometry.has_window() ? geometry.window : 0) {}

TokenRange SequenceLedger::window() const { return window_tokens_ == 0 ? TokenRange{0, position_} : window_; }

uint32_t SequenceLedger::window_needed_from(uint32_t position) const {
  return position >= window_tokens_ ? position - window_tokens_ + 1 : 0;
}

uint32_t SequenceLedger::safe_window_start() const { return std::max(window_.start, window_needed_from(window_.end)); }

std::string SequenceLedger::can_decode(uint32_t tokens) const {
  if (tokens == 0) return "no tokens to decode";
  if (tokens > UINT32_MAX - position_) return "the position overflows";
  if (window_tokens_ == 0 || position_ == 0) return {};
  const TokenRange needed{window_needed_from(position_), position_};
  if (window_.contains(needed)) return {};
  return "decoding at position " + std::to_string(position_) + " needs window rows " + text(needed) + ", there are " +
         text(window_);
}

void SequenceLedger::after_decode(uint32_t tokens) {
  require_allowed(can_decode(tokens));
  position_ += tokens;
  const uint32_t oldest = position_ >= window_tokens_ ? position_ - window_tokens_ : 0;
  window_ = {std::max(window_.start, oldest), position_};
}

std::string SequenceLedger::can_install(uint32_t start, uint32_t end, uint32_t window_start) const {
  if (start >= end) return "nothing to install in " + text({start, end});
  if (start != position_) {
    return "rows " + text({start, end}) + " do not follow the rows " + text({0, position_}) + " that are there";
  }
  if (window_start < start || window_start > end) {
    return "window rows from " + std::to_string(window_start) + " lie outside the chunk " + text({start, end});
  }
  if (window_tokens_ == 0) return {};
  if (end - window_start > window_tokens_) {
    return "window rows " + text({window_start, end}) + " are more than the window of " +
           std::to_string(window_tokens_) + " tokens";
  }
  return {};
}

void SequenceLedger::after_install(uint32_t start, uint32_t end, uint32_t window_start) {
  require_allowed(can_install(start, end, window_start));
  position_ = end;
  if (window_tokens_ == 0 || window_start == end) return;
  const uint32_t oldest = end >= window_tokens_ ? end - window_tokens_ : 0;
  const bool follows = window_start == window_.end;
  window_ = {std::max(follows ? window_.start : window_start, oldest), end};
}

std::string SequenceLedger::can_export(uint32_t start, uint32_t end, uint32_t window_start) const {
  if (start >= end || end > position_) {
    return "rows " + text({start, end}) + " are not a part of the rows " + text({0, position_}) + " that are there";
  }
  if (window_start < start || window_start > end) {
    return "window rows from " + std::to_string(window_start) + " lie outside the range " + text({start, end});
  }
  if (window_tokens_ == 0 || window_start == end) return {};
  if (end - window_start > window_tokens_) {
    return "window rows " + text({window_start, end}) + " are more than the window of " +
           std::to_string(window_tokens_) + " tokens";
  }
  if (!window_.contains({window_start, end})) {
    return "window rows " + text({window_start, end}) + " are not among the rows " + text(window_) +
           " that are there";
  }
  return {};
}

std::string SequenceLedger::can_truncate(uint32_t position, std::optional<TokenRange> seen_window) const {
  if (position > position_) {
    return "position " + std::to_string(position) + " lies beyond the end at " + std::to_string(position_);
  }
  if (position == position_ || position == 0 || window_tokens_ == 0) return {};
  const TokenRange needed{window_needed_from(position), position};
  const TokenRange safe{safe_window_start(), window_.end};
  if (safe.contains(needed)) return {};
  if (seen_window && seen_window->contains(needed)) return {};
  return "decoding on from position " + std::to_string(position) + " needs window rows " + text(needed) +
         ", only " + text(safe) + " can be counted on";
}

void SequenceLedger::after_truncate(uint32_t position, std::optional<TokenRange> seen_window) {
  require_allowed(can_truncate(position, seen_window));
  if (position == position_) return;
  const uint32_t start = seen_window ? seen_window->start : safe_window_start();
  position_ = position;
  window_ = {std::min(start, position), position};
}

std::string SequenceLedger::can_fork() const {
  if (position_ == 0) return "the sequence is empty";
  return can_decode(1);
}

SequenceLedger SequenceLedger::forked() const {
  require_allowed(can_fork());
  SequenceLedger copy = *this;
  copy.window_.start = safe_window_start();
  return copy;
}

void SequenceLedger::clear() {
  position_ = 0;
  window_ = {};
}

}  // namespace muser::kv
