#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "state_layout.h"

namespace muser::kv {

/// Unaligned little-endian access; llama.cpp writes its states in the host's order, and all its hosts are this one.
template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void store(uint8_t* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(T));
}

/// Bytes of a state with a bounds check at every access; throws StateForm beyond the end.
class StateBytes {
 public:
  StateBytes(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {}

  template <typename T>
  T at(size_t offset) const {
    if (offset > size_ || size_ - offset < sizeof(T)) throw_short(offset);
    return load<T>(bytes_ + offset);
  }
  size_t size() const { return size_; }

 private:
  [[noreturn]] void throw_short(size_t offset) const;

  const uint8_t* bytes_;
  size_t size_;
};

/// Throws StateForm unless `found` is what was expected.
void expect_field(const std::string& field, uint64_t found, uint64_t expected);

/// The cell count of the cache that starts at `offset`, after checking that it has one stream.
uint32_t cell_count_at(const StateBytes& state, size_t offset);

/// Checks all of a cache's headers; throws StateForm where they differ from what `form` and `geometry` imply.
void check_cache_headers(const StateBytes& state, const StateLayout& layout, const StateLayout::Cache& cache,
                         const StateForm& form, const Geometry& geometry);

/// Positions of a cache's cells in the order of its rows. Checks that each record has one sequence id, `sequence`.
std::vector<int32_t> cell_positions(const StateBytes& state, const StateLayout::Cache& cache, int32_t sequence);

/// Reads the layout of a whole state (flags 0) and checks every header and its exact size.
StateLayout read_layout(const StateBytes& state, const StateForm& form, const Geometry& geometry);

}  // namespace muser::kv
