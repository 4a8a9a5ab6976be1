#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "geometry.h"

namespace muser::kv {

/// Which rows of one sequence can be counted on. llama.cpp accepts broken sequences silently (a rollback below its
/// window, rows installed twice), so every operation asks here first. A `can_...` returns an empty string, or the
/// reason why not, with the numbers; an `after_...` records what was done, and throws Sequence if it was not allowed.
///
/// A token at position p sees window rows (p - window, p], so to decode it the rows [max(0, p - window + 1), p) must be
/// there. llama.cpp reuses older window cells whenever *any* sequence needs some; only the newest window - 1 rows are
/// safe from others. Row position - window is there just after a step of the sequence itself: it is exported (the
/// export then checks that it really is there), but never counted on for decoding.
class SequenceLedger {
 public:
  explicit SequenceLedger(const Geometry& geometry);

  /// Global rows [0, position) are there.
  uint32_t position() const { return position_; }
  /// Window rows recorded; equal to [0, position) when the model has no window layers.
  TokenRange window() const;
  /// True when the next token could be decoded now.
  bool decodable() const { return can_decode(1).empty(); }

  std::string can_decode(uint32_t tokens) const;
  void after_decode(uint32_t tokens);

  std::string can_install(uint32_t start, uint32_t end, uint32_t window_start) const;
  void after_install(uint32_t start, uint32_t end, uint32_t window_start);

  std::string can_export(uint32_t start, uint32_t end, uint32_t window_start) const;

  /// `seen_window`: the run that window_rows_in() found for the rows below `position`; without it only what is safe
  /// from other sequences counts.
  std::string can_truncate(uint32_t position, std::optional<TokenRange> seen_window = std::nullopt) const;
  void after_truncate(uint32_t position, std::optional<TokenRange> seen_window = std::nullopt);

  std::string can_fork() const;
  /// The ledger of a copy of this sequence that got the window rows of its own.
  SequenceLedger forked() const;

  /// Everything was removed.
  void clear();

 private:
  TokenRange global() const { return {0, position_}; }
  /// Why the window rows [window_start, range.end) do not belong to `range`; empty when they do.
  std::string window_part_fault(TokenRange range, uint32_t window_start) const;
  uint32_t window_needed_from(uint32_t position) const;
  uint32_t safe_window_start() const;

  uint32_t window_tokens_;  ///< 0: no window layers.
  uint32_t position_ = 0;
  TokenRange window_;
};

}  // namespace muser::kv
