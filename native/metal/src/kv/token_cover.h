#pragma once

#include <cstdint>
#include <vector>

#include "geometry.h"

namespace muser::kv {

/// Which tokens have been seen, as sorted ranges that do not touch.
class TokenCover {
 public:
  bool overlaps(TokenRange range) const;
  /// `range` must not overlap what is there.
  void add(TokenRange range);

 private:
  std::vector<TokenRange> ranges_;
};

}  // namespace muser::kv
