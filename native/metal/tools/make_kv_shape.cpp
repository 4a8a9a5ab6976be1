// Writes a small random model whose KV cache has the shape of Muse Glimmer 30B's, for measuring hand-offs.
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"

namespace muser::tools {
namespace {

constexpr const char* kHelp =
    "usage: muser-make-kv-shape OUT.gguf --tokenizer FILE.gguf [--hidden N] [--feed-forward N] [--seed N]\n"
    "\n"
    "muse-glimmer architecture, 52 layers (local, local, local, global), 2 KV heads of 128, 2 query heads,\n"
    "window 2,048, context 131,072: 52 KiB of KV a token in f16, as Muse Glimmer 30B has. The weights are random\n"
    "f16. --hidden and --feed-forward (256) set how much it computes. The tokenizer is copied from FILE.\n";

constexpr uint32_t kLayers = 52;
constexpr uint32_t kGlobalEvery = 4;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kWindow = 2048;
constexpr uint32_t kContext = 131072;
constexpr float kQueryScale = 3.87f;

/// A GGUF opened for its metadata.
class MetadataFile {
 public:
  explicit MetadataFile(const std::string& path) : file_(gguf_init_from_file(path.c_str(), {true, nullptr})) {
    if (file_ == nullptr) throw std::runtime_error("cannot read " + path);
  }
  ~MetadataFile() { gguf_free(file_); }
  MetadataFile(const MetadataFile&) = delete;
  MetadataFile& operator=(const MetadataFile&) = delete;

  const gguf_context* get() const { return file_; }

 private:
  gguf_context* file_;
};

class ModelWriter {
 public:
  ModelWriter(uint32_t seed, size_t memory)
      : gguf_(gguf_init_empty()), tensors_(ggml_init({memory, nullptr, false})), random_(seed) {
    if (tensors_ == nullptr) throw std::runtime_error("not enough memory");
  }
  ~ModelWriter() {
    ggml_free(tensors_);
    gguf_free(gguf_);
  }
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;

  gguf_context* keys() { return gguf_; }

  /// f16, normally distributed.
  void matrix(const std::string& name, int64_t columns, int64_t rows, float deviation) {
    ggml_tensor* tensor = ggml_new_tensor_2d(tensors_, GGML_TYPE_F16, columns, rows);
    std::normal_distribution<float> normal(0.0f, deviation);
    auto* values = static_cast<ggml_fp16_t*>(tensor->data);
    for (int64_t i = 0; i < columns * rows; ++i) values[i] = ggml_fp32_to_fp16(normal(random_));
    add(tensor, name);
  }

  /// f32, all the same.
  void vector(const std::string& name, int64_t elements, float value) {
    ggml_tensor* tensor = ggml_new_tensor_1d(tensors_, GGML_TYPE_F32, elements);
    std::fill_n(static_cast<float*>(tensor->data), elements, value);
    add(tensor, name);
  }

  void write(const std::string& path) {
    if (!gguf_write_to_file(gguf_, path.c_str(), false)) throw std::runtime_error("cannot write " + path);
  }

 private:
  void add(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_, tensor);
  }

  gguf_context* gguf_;
  ggml_context* tensors_;
  std::mt19937 random_;
};

struct Shape {
  uint32_t hidden;
  uint32_t feed_forward;
  uint32_t vocabulary;
};

uint32_t copy_tokenizer(const MetadataFile& from, gguf_context* to) {
  const int64_t tokens = gguf_find_key(from.get(), "tokenizer.ggml.tokens");
  if (tokens < 0) throw std::runtime_error("the tokenizer file has no tokenizer.ggml.tokens");
  // gguf_set_kv copies everything; what is not the tokenizer's is replaced or removed.
  gguf_set_kv(to, from.get());
  for (int64_t i = 0; i < gguf_get_n_kv(from.get()); ++i) {
    const std::string key = gguf_get_key(from.get(), i);
    if (key.rfind("tokenizer.", 0) != 0) gguf_remove_key(to, key.c_str());
  }
  return static_cast<uint32_t>(gguf_get_arr_n(from.get(), tokens));
}

void write_keys(gguf_context* keys, const Shape& shape) {
  const std::string prefix = "muse-glimmer.";
  const auto number = [&](const char* key, uint32_t value) { gguf_set_val_u32(keys, (prefix + key).c_str(), value); };
  const auto real = [&](const char* key, float value) { gguf_set_val_f32(keys, (prefix + key).c_str(), value); };
  gguf_set_val_str(keys, "general.architecture", "muse-glimmer");
  gguf_set_val_str(keys, "general.type", "model");
  gguf_set_val_str(keys, "general.name", "muse KV shape");
  number("block_count", kLayers);
  number("context_length", kContext);
  number("embedding_length", shape.hidden);
  number("feed_forward_length", shape.feed_forward);
  number("attention.head_count", kHeads);
  number("attention.head_count_kv", kKvHeads);
  number("attention.key_length", kHeadDim);
  number("attention.value_length", kHeadDim);
  number("attention.sliding_window", kWindow);
  real("rope.freq_base", 500000.0f);
  real("attention.layer_norm_rms_epsilon", 1e-5f);
  real("final_logit_softcapping", 20.0f);
  real("logit_scale", 0.19612f);
  std::vector<uint8_t> is_window(kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) is_window[layer] = layer % kGlobalEvery != kGlobalEvery - 1;
  gguf_set_arr_data(keys, (prefix + "attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL, is_window.data(),
                    kLayers);
}

void write_tensors(ModelWriter& writer, const Shape& shape) {
  const uint32_t query_width = kHeads * kHeadDim;
  const uint32_t kv_width = kKvHeads * kHeadDim;
  const auto deviation = [](uint32_t columns) { return 1.0f / std::sqrt(static_cast<float>(columns)); };
  writer.matrix("token_embd.weight", shape.hidden, shape.vocabulary, 1.0f);
  writer.vector("output_norm.weight", shape.hidden, 1.0f);
  writer.matrix("output.weight", shape.hidden, shape.vocabulary, 1.0f);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    writer.vector(block + "attn_norm.weight", shape.hidden, 1.0f);
    writer.vector(block + "post_attention_norm.weight", shape.hidden, 1.0f);
    writer.matrix(block + "attn_q.weight", shape.hidden, query_width, deviation(shape.hidden));
    writer.matrix(block + "attn_k.weight", shape.hidden, kv_width, deviation(shape.hidden));
    writer.matrix(block + "attn_v.weight", shape.hidden, kv_width, deviation(shape.hidden));
    writer.matrix(block + "attn_output.weight", query_width, shape.hidden, deviation(query_width));
    writer.vector(block + "attn_q_norm.weight", kHeadDim, kQueryScale);
    writer.vector(block + "attn_k_norm.weight", kHeadDim, 1.0f);
    writer.matrix(block + "attn_gate.weight", shape.hidden, query_width, deviation(shape.hidden));
    writer.vector(block + "ffn_norm.weight", shape.hidden, 1.0f);
    writer.vector(block + "post_ffw_norm.weight", shape.hidden, 1.0f);
    writer.matrix(block + "ffn_gate.weight", shape.hidden, shape.feed_forward, deviation(shape.hidden));
    writer.matrix(block + "ffn_up.weight", shape.hidden, shape.feed_forward, deviation(shape.hidden));
    writer.matrix(block + "ffn_down.weight", shape.feed_forward, shape.hidden, deviation(shape.feed_forward));
  }
}

int run(int count, char** values) {
  const Arguments arguments(count, values, {"tokenizer", "hidden", "feed-forward", "seed"});
  const std::string path = arguments.positional(1)[0];
  const std::string tokenizer = arguments.text("tokenizer", "");
  if (tokenizer.empty()) throw UsageError("--tokenizer is needed");
  Shape shape{arguments.number("hidden", 256, 32, 8192), arguments.number("feed-forward", 256, 32, 32768), 0};
  const MetadataFile metadata(tokenizer);

  const int64_t vocabulary_key = gguf_find_key(metadata.get(), "tokenizer.ggml.tokens");
  const size_t vocabulary = vocabulary_key < 0 ? 0 : gguf_get_arr_n(metadata.get(), vocabulary_key);
  const size_t layer_weights = size_t{shape.hidden} * (kHeadDim * (3 * kHeads + 2 * kKvHeads) + 3 * shape.feed_forward);
  const size_t weights = kLayers * layer_weights + 2 * size_t{shape.hidden} * vocabulary;
  ModelWriter writer(arguments.number("seed", 1, 0, UINT32_MAX), 2 * weights + (size_t{16} << 20));
  shape.vocabulary = copy_tokenizer(metadata, writer.keys());
  write_keys(writer.keys(), shape);
  write_tensors(writer, shape);
  writer.write(path);
  return 0;
}

}  // namespace
}  // namespace muser::tools

int main(int count, char** values) {
  return muser::tools::run_tool(count, values, muser::tools::kHelp, muser::tools::run);
}
