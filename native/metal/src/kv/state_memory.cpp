#include "state_memory.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace muser::kv {

namespace {

struct Block {
  std::unique_ptr<uint8_t[]> bytes;
  size_t capacity = 0;
};

class KeptBlocks {
 public:
  /// A block of at least `size` bytes that is not mostly wasted on it; an empty one when there is none.
  Block take(size_t size) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return block.capacity >= size && block.capacity / 2 <= size;
    });
    if (found == blocks_.end()) return {};
    Block block = std::move(*found);
    blocks_.erase(found);
    total_ -= block.capacity;
    return block;
  }

  /// Keeps a block, for which the oldest ones go.
  void give(Block block) {
    std::vector<Block> surplus;  // freed after the lock
    const std::lock_guard lock(mutex_);
    if (block.capacity > kKeptStateBytes) {
      surplus.push_back(std::move(block));
      return;
    }
    while (total_ + block.capacity > kKeptStateBytes) {
      total_ -= blocks_.front().capacity;
      surplus.push_back(std::move(blocks_.front()));
      blocks_.erase(blocks_.begin());
    }
    total_ += block.capacity;
    blocks_.push_back(std::move(block));
  }

  void clear() {
    std::vector<Block> surplus;
    const std::lock_guard lock(mutex_);
    surplus.swap(blocks_);
    total_ = 0;
  }

  size_t total() {
    const std::lock_guard lock(mutex_);
    return total_;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
  size_t total_ = 0;
};

/// Never destroyed: states may be given back while the process ends.
KeptBlocks& kept() {
  static auto* blocks = new KeptBlocks();
  return *blocks;
}

}  // namespace

StateMemory::StateMemory(size_t size) : size_(size), capacity_(size) {
  Block block = kept().take(size);
  if (block.bytes) {
    bytes_ = std::move(block.bytes);
    capacity_ = block.capacity;
  } else {
    bytes_ = std::make_unique_for_overwrite<uint8_t[]>(size);
  }
}

StateMemory::~StateMemory() {
  if (bytes_) kept().give({std::move(bytes_), capacity_});
}

StateMemory::StateMemory(StateMemory&& other) noexcept
    : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)), capacity_(other.capacity_) {}

StateMemory& StateMemory::operator=(StateMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

size_t kept_state_bytes() { return kept().total(); }

void release_kept_state_memory() { kept().clear(); }

}  // namespace muser::kv
