#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muser::platform {

/// What only macOS tells.
struct Device {
  std::string name;
  uint64_t recommended_working_set_bytes = 0;
  std::string thermal_state;    ///< nominal, fair, serious, critical, unknown
  std::string memory_pressure;  ///< normal, warning, critical, unknown
};

/// "linux-x64" and the like, as Node names them.
std::string name();

/// Memory that can be allocated without pushing others out; 0 = unknown.
uint64_t available_memory_bytes();

std::optional<Device> device();

}  // namespace muser::platform
