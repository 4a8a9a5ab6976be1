#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/platform.h"

namespace muser {

struct BackendDevice {
  std::string name;
  std::string description;
  std::string kind;  ///< cpu, gpu, accelerator
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;
};

struct BackendDescription {
  std::string platform;
  std::string llama_version;
  std::string llama_commit;
  std::vector<BackendDevice> backends;
  uint64_t available_memory_bytes = 0;
  std::optional<platform::Device> device;
};

/// Loads the backend libraries and takes llama.cpp's log over, once in a process. Throws ENGINE_FAILED when there is no
/// backend for this machine in the folder.
void initialize_backend(const std::string& library_folder);

BackendDescription describe_backend();

/// Memory for a new cache on the device that will hold it; 0 = unknown.
uint64_t memory_for_cache_bytes(bool on_gpu);

/// True when a GPU is there.
bool has_gpu();

/// Receives every warning and error of llama.cpp, on any thread; `owner` tells whose sink it is. Null removes it.
using LogSink = std::function<void(bool is_error, const std::string& text)>;
void set_log_sink(const void* owner, LogSink sink);

/// Collects llama.cpp's error messages of the current thread while it lives, for the text of our own error.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// The first error, on one line; `fallback` when there was none.
  std::string first_error(const std::string& fallback) const;
  void add(const std::string& text);

 private:
  LogCapture* outer_;
  std::string first_;
};

}  // namespace muser
