#pragma once

#include <stdexcept>
#include <string>

namespace muser::kv {

enum class KvErrorCode {
  Range,         ///< A layer, token range, size or length that does not fit.
  ValueInvalid,  ///< A value that is NaN, infinite, or beyond what f16 can hold.
  StateForm,     ///< A sequence state whose form is not one that this code knows.
  Sequence,      ///< An operation that the rows present in a sequence do not allow.
};

/// The one error of muser::kv. The message names the offending numbers and what was allowed.
class KvError : public std::runtime_error {
 public:
  KvError(KvErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  KvErrorCode code() const noexcept { return code_; }

 private:
  KvErrorCode code_;
};

}  // namespace muser::kv
