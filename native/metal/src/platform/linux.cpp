#include <algorithm>
#include <fstream>
#include <sstream>

#include "platform.h"

namespace muser::platform {

namespace {

/// A number from a one-line file; nothing when it is not there or says "max".
std::optional<uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

uint64_t machine_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("MemAvailable:", 0) != 0) continue;
    std::istringstream fields(line.substr(13));
    uint64_t kib = 0;
    if (fields >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

std::string name() {
#if defined(__aarch64__)
  return "linux-arm64";
#else
  return "linux-x64";
#endif
}

uint64_t available_memory_bytes() {
  const uint64_t machine = machine_available_bytes();
  // A container's own limit may be lower than what the machine has.
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return machine;
  const uint64_t group = *limit > *used ? *limit - *used : 1;
  return machine == 0 ? group : std::min(machine, group);
}

std::optional<Device> device() { return std::nullopt; }

}  // namespace muser::platform
