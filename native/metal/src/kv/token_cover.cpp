#include "token_cover.h"

#include <algorithm>

namespace muser::kv {

namespace {

bool ends_before(TokenRange range, uint32_t token) { return range.end < token; }

}  // namespace

bool TokenCover::overlaps(TokenRange range) const {
  const auto next = std::lower_bound(ranges_.begin(), ranges_.end(), range.start + 1, ends_before);
  return next != ranges_.end() && next->start < range.end;
}

void TokenCover::add(TokenRange range) {
  // The first range that touches or follows; it and its neighbour may both touch the new one.
  auto next = std::lower_bound(ranges_.begin(), ranges_.end(), range.start, ends_before);
  if (next != ranges_.end() && next->end == range.start) {
    range.start = next->start;
    next = ranges_.erase(next);
  }
  if (next != ranges_.end() && next->start == range.end) {
    next->start = range.start;
    return;
  }
  ranges_.insert(next, range);
}

}  // namespace muser::kv
