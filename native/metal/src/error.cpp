#include "error.h"

#include <new>

#include "kv/error.h"

namespace muser {

namespace {

ErrorCode code_of(kv::KvErrorCode code) {
  switch (code) {
    case kv::KvErrorCode::Range: return ErrorCode::RangeViolation;
    case kv::KvErrorCode::ValueInvalid: return ErrorCode::ValueInvalid;
    case kv::KvErrorCode::StateForm: return ErrorCode::EngineFailed;
    case kv::KvErrorCode::Sequence: return ErrorCode::SequenceState;
  }
  return ErrorCode::EngineFailed;
}

}  // namespace

EngineError current_error() {
  try {
    throw;
  } catch (const EngineError& error) {
    return error;
  } catch (const kv::KvError& error) {
    return EngineError(code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return EngineError(ErrorCode::OutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return EngineError(ErrorCode::EngineFailed, error.what());
  } catch (...) {
    return EngineError(ErrorCode::EngineFailed, "an unknown native exception");
  }
}

}  // namespace muser
