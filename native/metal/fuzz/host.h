#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace muser::fuzz {

/// One input. Whatever it throws is a failure, and so is what the sanitizers find.
void run(const uint8_t* data, size_t size);

/// Throws: something is not as it must be.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Choices read from an input, as in packages/testing/src/fuzzing/choices.ts. After its end every choice is the first.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return at_ >= size_; }

  /// In [from, to]; takes as few bytes as the range needs.
  uint32_t integer(uint32_t from, uint32_t to) {
    const uint64_t span = uint64_t{to} - from + 1;
    uint64_t value = 0;
    for (uint64_t limit = 1; limit < span; limit *= 256) value = value * 256 + byte();
    return from + static_cast<uint32_t>(value % span);
  }

  template <typename T>
  T pick(std::initializer_list<T> items) {
    return items.begin()[integer(0, static_cast<uint32_t>(items.size()) - 1)];
  }

  bool one_in(uint32_t count) { return integer(0, count - 1) == count - 1; }

 private:
  uint8_t byte() { return at_ < size_ ? data_[at_++] : (++at_, uint8_t{0}); }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

}  // namespace muser::fuzz
