#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace muser::kv {

/// Uninitialised bytes for one state. A chunk's state takes tens of megabytes, and the page faults of fresh memory cost
/// several times what the conversion does; so memory that is given back is kept for the next state, up to a limit.
/// Thread-safe.
class StateMemory {
 public:
  /// Throws std::bad_alloc.
  explicit StateMemory(size_t size);
  ~StateMemory();
  StateMemory(StateMemory&& other) noexcept;
  StateMemory& operator=(StateMemory&& other) noexcept;

  uint8_t* data() { return bytes_.get(); }
  const uint8_t* data() const { return bytes_.get(); }
  size_t size() const { return size_; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_;
  size_t capacity_;
};

/// Bytes kept for reuse at most.
constexpr size_t kKeptStateBytes = size_t{128} << 20;
/// Bytes kept for reuse now.
size_t kept_state_bytes();
/// Gives them back to the system.
void release_kept_state_memory();

}  // namespace muser::kv
