#include "backend.h"

#include <map>
#include <memory>
#include <mutex>

#include "error.h"
#include "llama.h"

namespace muser {

namespace {

thread_local LogCapture* current_capture = nullptr;
thread_local ggml_log_level current_level = GGML_LOG_LEVEL_NONE;

std::mutex sinks_mutex;

std::map<const void*, LogSink>& sinks() {
  // Never destroyed: backend threads may log while the process ends.
  static auto* map = new std::map<const void*, LogSink>();
  return *map;
}

void on_log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_CONT) level = current_level;
  current_level = level;
  if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR) return;
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (line.empty()) return;
  const bool is_error = level == GGML_LOG_LEVEL_ERROR;
  if (is_error && current_capture != nullptr) current_capture->add(line);
  const std::lock_guard lock(sinks_mutex);
  for (const auto& [owner, sink] : sinks()) sink(is_error, line);
}

std::string kind_of(ggml_backend_dev_t device) {
  switch (ggml_backend_dev_type(device)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return "gpu";
    default: return "accelerator";
  }
}

ggml_backend_dev_t first_gpu() {
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    if (kind_of(device) == "gpu") return device;
  }
  return nullptr;
}

}  // namespace

void initialize_backend(const std::string& library_folder) {
  static std::mutex mutex;
  static bool done = false;
  const std::lock_guard lock(mutex);
  if (done) return;
  llama_log_set(on_log, nullptr);
  ggml_backend_load_all_from_path(library_folder.c_str());
  llama_backend_init();
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    throw EngineError(ErrorCode::EngineFailed, "no backend library fits this machine's processor");
  }
  done = true;
}

BackendDescription describe_backend() {
  BackendDescription description;
  description.platform = platform::name();
  description.llama_version = llama_version();
  description.llama_commit = ggml_commit();
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    size_t free = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    description.backends.push_back({ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                                    kind_of(device), total, free});
  }
  description.available_memory_bytes = platform::available_memory_bytes();
  description.device = platform::device();
  return description;
}

bool has_gpu() { return first_gpu() != nullptr; }

uint64_t memory_for_cache_bytes(bool on_gpu) {
  ggml_backend_dev_t gpu = on_gpu ? first_gpu() : nullptr;
  if (gpu == nullptr) return platform::available_memory_bytes();
  size_t free = 0;
  size_t total = 0;
  ggml_backend_dev_memory(gpu, &free, &total);
  return free;
}

void set_log_sink(const void* owner, LogSink sink) {
  const std::lock_guard lock(sinks_mutex);
  if (sink) {
    sinks()[owner] = std::move(sink);
  } else {
    sinks().erase(owner);
  }
}

LogCapture::LogCapture() : outer_(current_capture) { current_capture = this; }
LogCapture::~LogCapture() { current_capture = outer_; }

void LogCapture::add(const std::string& text) {
  // The first one has the reason; those after it say what failed because of it.
  if (first_.empty()) first_ = text;
}

std::string LogCapture::first_error(const std::string& fallback) const { return first_.empty() ? fallback : first_; }

}  // namespace muser
