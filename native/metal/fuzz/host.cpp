// Runs inputs one after another: see packages/testing/src/fuzzing/target-process.ts.
#include "host.h"

#include <unistd.h>

#include <bitset>
#include <exception>

namespace {

constexpr int kAnswers = 3;
constexpr uint8_t kKnown = 0;
constexpr uint8_t kNew = 1;
constexpr uint8_t kFailed = 2;

std::bitset<1u << 16> seen;
uintptr_t last = 0;
bool is_new = false;

bool read_exactly(void* target, size_t count) {
  auto* bytes = static_cast<uint8_t*>(target);
  while (count > 0) {
    const ssize_t got = read(STDIN_FILENO, bytes, count);
    if (got <= 0) return false;
    bytes += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

void answer(const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t wrote = write(kAnswers, text.data() + sent, text.size() - sent);
    if (wrote <= 0) std::exit(1);
    sent += static_cast<size_t>(wrote);
  }
}

std::string outcome_of(const std::vector<uint8_t>& input) {
  last = 0;
  is_new = false;
  try {
    muser::fuzz::run(input.data(), input.size());
    return std::string(1, static_cast<char>(is_new ? kNew : kKnown));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const auto length = static_cast<uint32_t>(text.size());
    std::string failed(1, static_cast<char>(kFailed));
    for (int shift = 0; shift < 32; shift += 8) failed += static_cast<char>(length >> shift & 0xff);
    return failed + text;
  }
}

}  // namespace

/// The compiler puts a call of it at every edge of src/kv. Counts ways from one edge to the next.
extern "C" void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const size_t way = (place ^ last) % seen.size();
  last = place >> 1;
  if (seen[way]) return;
  seen[way] = true;
  is_new = true;
}

int main() {
  answer(std::string(1, static_cast<char>(kKnown)));
  uint32_t length = 0;
  while (read_exactly(&length, sizeof(length))) {
    // Of its very size, so that a read beyond its end is found.
    std::vector<uint8_t> input(length);
    if (length > 0 && !read_exactly(input.data(), length)) return 1;
    answer(outcome_of(input));
  }
  return 0;
}
