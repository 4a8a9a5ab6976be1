#pragma once

#include <stdexcept>
#include <string>

namespace muser {

/// The closed list of ts/errors.ts, in its order.
enum class ErrorCode {
  ModelLoadFailed,
  ModelUnsupported,
  Cancelled,
  ContextFull,
  OutOfMemory,
  SequenceState,
  RangeViolation,
  ValueInvalid,
  InvalidArgument,
  EngineFailed,
};

constexpr const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ModelLoadFailed: return "MODEL_LOAD_FAILED";
    case ErrorCode::ModelUnsupported: return "MODEL_UNSUPPORTED";
    case ErrorCode::Cancelled: return "CANCELLED";
    case ErrorCode::ContextFull: return "CONTEXT_FULL";
    case ErrorCode::OutOfMemory: return "OUT_OF_MEMORY";
    case ErrorCode::SequenceState: return "SEQUENCE_STATE";
    case ErrorCode::RangeViolation: return "RANGE_VIOLATION";
    case ErrorCode::ValueInvalid: return "VALUE_INVALID";
    case ErrorCode::InvalidArgument: return "INVALID_ARGUMENT";
    case ErrorCode::EngineFailed: return "ENGINE_FAILED";
  }
  return "ENGINE_FAILED";
}

/// What crosses the border to JavaScript. Messages carry numbers and names, never prompt text.
class EngineError : public std::runtime_error {
 public:
  EngineError(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// The error that is being handled, with a code. Call it in a catch block only.
EngineError current_error();

}  // namespace muser
