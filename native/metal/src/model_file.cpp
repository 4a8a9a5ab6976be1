#include "model_file.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>

#include "backend.h"
#include "error.h"
#include "gguf.h"

namespace muser {

namespace {

constexpr uint64_t kHeaderBytes = 24;  // magic, version, tensor count, key count
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxKeys = 1 << 20;
constexpr uint64_t kMaxLayers = 512;  // LLAMA_MAX_LAYERS
constexpr uint64_t kMaxExperts = 1024;

[[noreturn]] void fail(const std::string& reason) { throw EngineError(ErrorCode::ModelLoadFailed, reason); }

struct GgufDeleter {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using Gguf = std::unique_ptr<gguf_context, GgufDeleter>;

uint64_t little_endian(const unsigned char* bytes, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

/// Looks at the first bytes ourselves: a clear reason, and nothing absurd reaches the parser.
void check_prefix(const ModelFile& file) {
  std::ifstream stream(file.path, std::ios::binary);
  unsigned char header[kHeaderBytes];
  if (!stream) fail("the file cannot be opened");
  if (file.bytes < 4 || !stream.read(reinterpret_cast<char*>(header), 4)) {
    fail("no GGUF file: only " + std::to_string(file.bytes) + " bytes");
  }
  if (std::memcmp(header, "GGUF", 4) != 0) fail("no GGUF file: it does not start with GGUF");
  if (file.bytes < kHeaderBytes || !stream.read(reinterpret_cast<char*>(header + 4), kHeaderBytes - 4)) {
    fail("truncated: the header is incomplete, the file has " + std::to_string(file.bytes) + " bytes");
  }
  const uint64_t version = little_endian(header + 4, 4);
  const uint64_t tensors = little_endian(header + 8, 8);
  const uint64_t keys = little_endian(header + 16, 8);
  if (version != 2 && version != 3) fail("GGUF version " + std::to_string(version) + ", only 2 and 3 are known");
  if (tensors > kMaxTensors || keys > kMaxKeys) {
    fail("damaged header: " + std::to_string(tensors) + " tensors, " + std::to_string(keys) + " keys");
  }
}

Gguf open_gguf(const ModelFile& file) {
  LogCapture capture;
  gguf_init_params parameters{/*no_alloc=*/true, /*ctx=*/nullptr};
  Gguf gguf(gguf_init_from_file(file.path.c_str(), parameters));
  if (!gguf) fail("truncated or damaged header: " + capture.first_error("llama.cpp cannot read it"));
  return gguf;
}

void check_tensor_extents(const gguf_context* gguf, const ModelFile& file) {
  const uint64_t data = gguf_get_data_offset(gguf);
  const int64_t count = gguf_get_n_tensors(gguf);
  if (count == 0) fail("the file has no tensors");
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t offset = gguf_get_tensor_offset(gguf, i);
    const uint64_t size = gguf_get_tensor_size(gguf, i);
    if (data > file.bytes || offset > file.bytes - data || size > file.bytes - data - offset) {
      fail("truncated: the file has " + std::to_string(file.bytes) + " bytes, tensor " + std::to_string(i) + " of " +
           std::to_string(count) + " ends after that");
    }
  }
}

/// Whole numbers of the model's architecture.
class Metadata {
 public:
  Metadata(const gguf_context* gguf, std::string prefix) : gguf_(gguf), prefix_(std::move(prefix)) {}

  /// Null when it is missing, or given once a layer.
  std::optional<uint64_t> whole(const char* name) const {
    const int64_t id = find(name);
    if (id < 0 || gguf_get_kv_type(gguf_, id) == GGUF_TYPE_ARRAY) return std::nullopt;
    switch (gguf_get_kv_type(gguf_, id)) {
      case GGUF_TYPE_UINT8: return gguf_get_val_u8(gguf_, id);
      case GGUF_TYPE_UINT16: return gguf_get_val_u16(gguf_, id);
      case GGUF_TYPE_UINT32: return gguf_get_val_u32(gguf_, id);
      case GGUF_TYPE_UINT64: return gguf_get_val_u64(gguf_, id);
      case GGUF_TYPE_INT32:
        if (gguf_get_val_i32(gguf_, id) >= 0) return static_cast<uint64_t>(gguf_get_val_i32(gguf_, id));
        [[fallthrough]];
      default: fail("damaged header: " + prefix_ + name + " has the wrong type");
    }
  }

  uint64_t required(const char* name) const {
    if (find(name) < 0) fail("damaged header: " + prefix_ + name + " is missing");
    return whole(name).value_or(0);
  }

  /// Checks a number that may be missing, given once, or given once a layer.
  void bound(const char* name, uint64_t low, uint64_t high) const {
    const int64_t id = find(name);
    if (id < 0) return;
    if (gguf_get_kv_type(gguf_, id) != GGUF_TYPE_ARRAY) return check(name, *whole(name), low, high);
    const gguf_type type = gguf_get_arr_type(gguf_, id);
    if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) return;
    const auto* values = static_cast<const uint32_t*>(gguf_get_arr_data(gguf_, id));
    for (size_t i = 0; i < gguf_get_arr_n(gguf_, id); ++i) check(name, values[i], low, high);
  }

 private:
  int64_t find(const char* name) const { return gguf_find_key(gguf_, (prefix_ + name).c_str()); }

  void check(const char* name, uint64_t value, uint64_t low, uint64_t high) const {
    if (value >= low && value <= high) return;
    fail("damaged header: " + prefix_ + name + " is " + std::to_string(value) + ", not " + std::to_string(low) +
         " to " + std::to_string(high));
  }

  const gguf_context* gguf_;
  std::string prefix_;
};

std::string text_of(const gguf_context* gguf, const std::string& key) {
  const int64_t id = gguf_find_key(gguf, key.c_str());
  if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_STRING) return {};
  return gguf_get_val_str(gguf, id);
}

/// llama.cpp asserts these, or divides by them.
void check_numbers(const gguf_context* gguf, const std::string& architecture) {
  const Metadata metadata(gguf, architecture + ".");
  metadata.required("block_count");
  metadata.required("embedding_length");
  metadata.bound("block_count", 1, kMaxLayers);
  metadata.bound("embedding_length", 1, 1 << 20);
  metadata.bound("attention.head_count", 0, 1024);
  metadata.bound("attention.head_count_kv", 0, 1024);
  metadata.bound("attention.key_length", 0, 4096);
  metadata.bound("attention.value_length", 0, 4096);
  metadata.bound("attention.sliding_window", 0, 1U << 31);
  metadata.bound("nextn_predict_layers", 0, metadata.required("block_count"));
  metadata.bound("rope.dimension_count", 0, metadata.whole("attention.key_length").value_or(4096));
  metadata.bound("expert_count", 0, kMaxExperts);
  const uint64_t experts = metadata.whole("expert_count").value_or(0);
  metadata.bound("expert_used_count", experts == 0 ? 0 : 1, experts);
  const std::string scaling = text_of(gguf, architecture + ".rope.scaling.type");
  if (!std::set<std::string>{"", "none", "linear", "yarn", "longrope"}.contains(scaling)) {
    fail("damaged header: RoPE is scaled in an unknown way (" + scaling.substr(0, 32) + ")");
  }
}

}  // namespace

std::string ModelFile::key() const {
  return path + '\n' + std::to_string(bytes) + '\n' + std::to_string(changed_ns);
}

ModelFile find_model_file(const std::string& path) {
  namespace fs = std::filesystem;
  ModelFile file;
  std::error_code error;
  const fs::path canonical = fs::canonical(fs::path(path), error);
  if (error) fail("no such file: " + path);
  if (!fs::is_regular_file(canonical, error)) fail("not a file: " + path);
  file.path = canonical.string();
  file.bytes = fs::file_size(canonical, error);
  if (error) fail("its size cannot be read: " + path);
  if (file.bytes == 0) fail("the file is empty: " + path);
  const auto changed = fs::last_write_time(canonical, error);
  if (error) fail("its change time cannot be read: " + path);
  file.changed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(changed.time_since_epoch()).count();
  return file;
}

void read_model_header(ModelFile& file) {
  check_prefix(file);
  const Gguf gguf = open_gguf(file);
  file.architecture = text_of(gguf.get(), "general.architecture");
  file.name = text_of(gguf.get(), "general.name");
  if (file.architecture.empty()) fail("damaged header: general.architecture is missing");
  const Metadata split(gguf.get(), "split.");
  if (split.whole("count").value_or(1) > 1) {
    throw EngineError(ErrorCode::ModelUnsupported,
                      "a model in several files: join them with llama-gguf-split --merge");
  }
  check_tensor_extents(gguf.get(), file);
  check_numbers(gguf.get(), file.architecture);
}

}  // namespace muser
