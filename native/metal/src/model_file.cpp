#include "model_file.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "backend.h"
#include "error.h"
#include "gguf.h"

namespace muser {

namespace {

constexpr uint64_t kHeaderBytes = 24;  // magic, version, tensor count, key count
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxKeys = 1 << 20;
constexpr uint32_t kMaxLayers = 256;

[[noreturn]] void fail(const std::string& reason) { throw EngineError(ErrorCode::ModelLoadFailed, reason); }
[[noreturn]] void unsupported(const std::string& reason) { throw EngineError(ErrorCode::ModelUnsupported, reason); }

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
  if (!gguf) fail("truncated or damaged header: " + capture.last_error("llama.cpp cannot read it"));
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

/// Scalar or array metadata of the model's architecture, as numbers.
class Metadata {
 public:
  Metadata(const gguf_context* gguf, std::string prefix) : gguf_(gguf), prefix_(std::move(prefix)) {}

  std::optional<uint64_t> whole(const char* name) const {
    const int64_t id = find(name);
    if (id < 0) return std::nullopt;
    return whole_at(id, name);
  }

  std::optional<float> real(const char* name) const {
    const int64_t id = find(name);
    if (id < 0) return std::nullopt;
    if (gguf_get_kv_type(gguf_, id) != GGUF_TYPE_FLOAT32) wrong_type(name);
    return gguf_get_val_f32(gguf_, id);
  }

  /// One value a layer, from an array of flags.
  std::optional<std::vector<bool>> flags(const char* name) const {
    const int64_t id = find(name);
    if (id < 0 || gguf_get_kv_type(gguf_, id) != GGUF_TYPE_ARRAY) return std::nullopt;
    if (gguf_get_arr_type(gguf_, id) != GGUF_TYPE_BOOL) wrong_type(name);
    const auto* values = static_cast<const int8_t*>(gguf_get_arr_data(gguf_, id));
    return std::vector<bool>(values, values + gguf_get_arr_n(gguf_, id));
  }

  /// A number that may be given once or once a layer, as long as all layers have the same.
  std::optional<uint64_t> uniform(const char* name) const {
    const int64_t id = find(name);
    if (id < 0) return std::nullopt;
    if (gguf_get_kv_type(gguf_, id) != GGUF_TYPE_ARRAY) return whole_at(id, name);
    const gguf_type type = gguf_get_arr_type(gguf_, id);
    if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) wrong_type(name);
    const auto* values = static_cast<const uint32_t*>(gguf_get_arr_data(gguf_, id));
    const size_t count = gguf_get_arr_n(gguf_, id);
    for (size_t i = 0; i < count; ++i) {
      if (values[i] != values[0]) unsupported(std::string(name) + " differs between layers");
    }
    return count == 0 ? std::nullopt : std::optional<uint64_t>(values[0]);
  }

 private:
  int64_t find(const char* name) const { return gguf_find_key(gguf_, (prefix_ + name).c_str()); }

  [[noreturn]] void wrong_type(const char* name) const {
    fail("damaged header: " + prefix_ + name + " has the wrong type");
  }

  uint64_t whole_at(int64_t id, const char* name) const {
    switch (gguf_get_kv_type(gguf_, id)) {
      case GGUF_TYPE_UINT8: return gguf_get_val_u8(gguf_, id);
      case GGUF_TYPE_UINT16: return gguf_get_val_u16(gguf_, id);
      case GGUF_TYPE_UINT32: return gguf_get_val_u32(gguf_, id);
      case GGUF_TYPE_UINT64: return gguf_get_val_u64(gguf_, id);
      case GGUF_TYPE_INT32:
        if (gguf_get_val_i32(gguf_, id) >= 0) return static_cast<uint64_t>(gguf_get_val_i32(gguf_, id));
        [[fallthrough]];
      default: wrong_type(name);
    }
  }

  const gguf_context* gguf_;
  std::string prefix_;
};

std::string text_of(const gguf_context* gguf, const char* key) {
  const int64_t id = gguf_find_key(gguf, key);
  if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_STRING) return {};
  return gguf_get_val_str(gguf, id);
}

uint32_t bounded(std::optional<uint64_t> value, const char* name, uint64_t low, uint64_t high) {
  if (!value) fail(std::string("damaged header: ") + name + " is missing");
  if (*value < low || *value > high) {
    fail(std::string("damaged header: ") + name + " is " + std::to_string(*value) + ", not " + std::to_string(low) +
         " to " + std::to_string(high));
  }
  return static_cast<uint32_t>(*value);
}

std::vector<kv::LayerKind> layer_kinds(const Metadata& metadata, uint32_t layers) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  constexpr uint64_t kDefaultPeriod = 4;  // of llama.cpp, for this architecture
  std::vector<kv::LayerKind> kinds(layers);
  if (const auto flags = metadata.flags(kPattern)) {
    if (flags->size() != layers) {
      fail("damaged header: " + std::string(kPattern) + " has " + std::to_string(flags->size()) + " entries for " +
           std::to_string(layers) + " layers");
    }
    for (uint32_t i = 0; i < layers; ++i) kinds[i] = (*flags)[i] ? kv::LayerKind::Window : kv::LayerKind::Global;
    return kinds;
  }
  const uint64_t period = metadata.whole(kPattern).value_or(kDefaultPeriod);
  for (uint32_t i = 0; i < layers; ++i) {
    const bool window = period == 0 || i % period < period - 1;
    kinds[i] = window ? kv::LayerKind::Window : kv::LayerKind::Global;
  }
  return kinds;
}

void read_geometry(const gguf_context* gguf, ModelFile& file) {
  const Metadata metadata(gguf, file.architecture + ".");
  const uint32_t layers = bounded(metadata.whole("block_count"), "block_count", 1, kMaxLayers);
  const uint32_t heads = bounded(metadata.uniform("attention.head_count"), "attention.head_count", 1, 1024);
  const uint32_t embedding = bounded(metadata.whole("embedding_length"), "embedding_length", 1, 1 << 20);
  const uint64_t head_dim = metadata.whole("attention.key_length").value_or(embedding / heads);
  if (metadata.whole("attention.value_length").value_or(embedding / heads) != head_dim) {
    unsupported("K and V rows differ in length");
  }
  file.geometry.layers = layer_kinds(metadata, layers);
  file.geometry.kv_heads =
      bounded(metadata.uniform("attention.head_count_kv").value_or(heads), "attention.head_count_kv", 1, 1024);
  file.geometry.head_dim = bounded(head_dim, "attention.key_length", 2, 1024);
  if (file.geometry.has_window()) {
    constexpr const char* kWindow = "attention.sliding_window";
    file.geometry.window = bounded(metadata.whole(kWindow), kWindow, 1, 1 << 20);
  }
  const float base = metadata.real("rope.freq_base").value_or(10000.0F);
  file.rope_base = metadata.real("rope.freq_base_swa").value_or(base);
  file.rope_on_window_layers_only = true;  // of this architecture
  try {
    file.geometry.check();
  } catch (const kv::KvError& error) {
    unsupported(error.what());
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
  if (file.architecture != "muse-glimmer") {
    unsupported("architecture " + file.architecture + ", this engine knows muse-glimmer");
  }
  const Metadata split(gguf.get(), "split.");
  if (split.whole("count").value_or(1) > 1) {
    unsupported("a model in several files: join them with llama-gguf-split --merge");
  }
  check_tensor_extents(gguf.get(), file);
  read_geometry(gguf.get(), file);
}

}  // namespace muser
