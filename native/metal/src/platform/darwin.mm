#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <dispatch/dispatch.h>
#include <mach/mach.h>
#include <sys/sysctl.h>

#include "platform.h"

namespace muser::platform {

namespace {

std::string thermal_state() {
  switch ([[NSProcessInfo processInfo] thermalState]) {
    case NSProcessInfoThermalStateNominal: return "nominal";
    case NSProcessInfoThermalStateFair: return "fair";
    case NSProcessInfoThermalStateSerious: return "serious";
    case NSProcessInfoThermalStateCritical: return "critical";
  }
  return "unknown";
}

std::string memory_pressure() {
  int level = 0;
  size_t size = sizeof(level);
  if (sysctlbyname("kern.memorystatus_vm_pressure_level", &level, &size, nullptr, 0) != 0) return "unknown";
  switch (level) {
    case DISPATCH_MEMORYPRESSURE_NORMAL: return "normal";
    case DISPATCH_MEMORYPRESSURE_WARN: return "warning";
    case DISPATCH_MEMORYPRESSURE_CRITICAL: return "critical";
    default: return "unknown";
  }
}

}  // namespace

std::string name() { return "darwin-arm64"; }

uint64_t available_memory_bytes() {
  vm_statistics64_data_t statistics;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = mach_host_self();
  const kern_return_t result =
      host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics), &count);
  mach_port_deallocate(mach_task_self(), host);
  if (result != KERN_SUCCESS) return 0;
  const uint64_t pages = static_cast<uint64_t>(statistics.free_count) + statistics.inactive_count +
                         statistics.purgeable_count;
  return pages * vm_kernel_page_size;
}

std::optional<Device> device() {
  @autoreleasepool {
    id<MTLDevice> metal = MTLCreateSystemDefaultDevice();
    if (metal == nil) return std::nullopt;
    return Device{
        .name = [[metal name] UTF8String],
        .recommended_working_set_bytes = [metal recommendedMaxWorkingSetSize],
        .thermal_state = thermal_state(),
        .memory_pressure = memory_pressure(),
    };
  }
}

}  // namespace muser::platform
