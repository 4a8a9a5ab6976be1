#include "ledger.h"

#include <algorithm>

namespace muser::kv {

namespace {

void require_allowed(const std::string& reason) {
  if (!reason.empty()) throw KvError(KvErrorCode::Sequence, reason);
}

}  // namespace

SequenceLedger::SequenceLedger(const Geometry& geometry)
    : window_tokens_(geometry.has_window() ? geometry.window : 0) {}

TokenRange SequenceLedger::window() const { return window_tokens_ == 0 ? global() : window_; }

uint32_t SequenceLedger::window_needed_from(uint32_t position) const {
  return position >= window_tokens_ ? position - window_tokens_ + 1 : 0;
}

uint32_t SequenceLedger::safe_window_start() const { return std::max(window_.start, window_needed_from(window_.end)); }

std::string SequenceLedger::window_part_fault(TokenRange range, uint32_t window_start) const {
  if (window_start < range.start || window_start > range.end) {
    return "window rows from " + std::to_string(window_start) + " lie outside " + to_string(range);
  }
  if (window_tokens_ == 0 || range.end - window_start <= window_tokens_) return {};
  return "window rows " + to_string(TokenRange{window_start, range.end}) + " are more than the window of " +
         std::to_string(window_tokens_) + " tokens";
}

std::string SequenceLedger::can_decode(uint32_t tokens) const {
  if (tokens == 0) return "no tokens to decode";
  if (tokens > UINT32_MAX - position_) return "the position overflows";
  if (window_tokens_ == 0 || position_ == 0) return {};
  const TokenRange needed{window_needed_from(position_), position_};
  if (window_.contains(needed)) return {};
  return "decoding at position " + std::to_string(position_) + " needs window rows " + to_string(needed) +
         ", there are " + to_string(window_);
}

void SequenceLedger::after_decode(uint32_t tokens) {
  require_allowed(can_decode(tokens));
  position_ += tokens;
  const uint32_t oldest = position_ >= window_tokens_ ? position_ - window_tokens_ : 0;
  window_ = {std::max(window_.start, oldest), position_};
}

std::string SequenceLedger::can_install(uint32_t start, uint32_t end, uint32_t window_start) const {
  const TokenRange chunk{start, end};
  if (start >= end) return "nothing to install in " + to_string(chunk);
  if (start != position_) {
    return "rows " + to_string(chunk) + " do not follow the rows " + to_string(global()) + " that are there";
  }
  return window_part_fault(chunk, window_start);
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
  const TokenRange range{start, end};
  if (start >= end || end > position_) {
    return "rows " + to_string(range) + " are not a part of the rows " + to_string(global()) + " that are there";
  }
  std::string fault = window_part_fault(range, window_start);
  if (!fault.empty() || window_tokens_ == 0 || window_start == end) return fault;
  const TokenRange wanted{window_start, end};
  if (window_.contains(wanted)) return {};
  return "window rows " + to_string(wanted) + " are not among the rows " + to_string(window_) + " that are there";
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
  return "decoding on from position " + std::to_string(position) + " needs window rows " + to_string(needed) +
         ", only " + to_string(safe) + " can be counted on";
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
