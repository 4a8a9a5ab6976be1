#include "llama_fixture.h"

#include <ggml-backend.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>

namespace muser::kv {

namespace {

constexpr uint32_t kBatchTokens = 2048;
constexpr uint32_t kMicroBatchTokens = 512;
constexpr int32_t kThreads = 1;

void load_backends() {
  static const bool loaded = [] {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all_from_path(MUSER_TEST_LIBRARIES);
    llama_backend_init();
    return true;
  }();
  static_cast<void>(loaded);
}

std::string metadata(const llama_model* model, const std::string& key) {
  char text[256];
  const int32_t length = llama_model_meta_val_str(model, key.c_str(), text, sizeof(text));
  return length < 0 ? std::string() : std::string(text);
}

Geometry geometry_of(const llama_model* model) {
  Geometry geometry;
  geometry.kv_heads = static_cast<uint32_t>(llama_model_n_head_kv(model));
  const std::string architecture = metadata(model, "general.architecture");
  geometry.head_dim = static_cast<uint32_t>(std::stoul(metadata(model, architecture + ".attention.key_length")));
  geometry.window = static_cast<uint32_t>(llama_model_n_swa(model));
  geometry.k_interleaved = llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NORM;
  // Every fourth layer of muse-glimmer is global.
  for (int32_t layer = 0; layer < llama_model_n_layer(model); ++layer) {
    const bool global = geometry.window == 0 || layer % 4 == 3;
    geometry.layers.push_back(global ? LayerKind::Global : LayerKind::Window);
  }
  return geometry;
}

/// A batch with room for `capacity` tokens.
class Batch {
 public:
  explicit Batch(uint32_t capacity) : batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void add(llama_token token, uint32_t position, llama_seq_id sequence, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits ? 1 : 0;
  }

  void run(llama_context* context) {
    const int32_t result = llama_decode(context, batch_);
    if (result != 0) throw std::runtime_error("llama_decode gave " + std::to_string(result));
  }

 private:
  llama_batch batch_;
};

}  // namespace

TestModel::TestModel(const std::string& path) {
  load_backends();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (!model_) throw std::runtime_error("cannot load " + path);
  geometry_ = geometry_of(model_.get());
}

Tokens TestModel::tokenize(const std::string& text) const {
  Tokens tokens(text.size() + 8);
  const int32_t count = llama_tokenize(llama_model_get_vocab(get()), text.data(), static_cast<int32_t>(text.size()),
                                       tokens.data(), static_cast<int32_t>(tokens.size()), false, true);
  if (count < 0) throw std::runtime_error("cannot tokenize");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

const TestModel& muse_nano() {
  static const TestModel model(MUSER_TEST_MODEL);
  return model;
}

Tokens needle_prompt(uint32_t count) {
  constexpr uint32_t kWithQuestion = 200;
  static const char* const kSubjects[] = {"The harbour", "A careful reader", "The old library", "Each new member",
                                          "The northern road", "Her second letter", "The small engine"};
  static const char* const kActions[] = {"was closed for the winter", "opened a little before noon",
                                         "needed more time than planned", "stood beside the river",
                                         "had been repaired twice", "came with a short description"};
  std::mt19937 random(count);
  std::string text;
  for (uint32_t words = 0; words < count + 64; words += 5) {
    text += kSubjects[random() % std::size(kSubjects)];
    text += ' ';
    text += kActions[random() % std::size(kActions)];
    text += random() % 5 == 0 ? ".\n" : ". ";
  }
  const Tokens begin = muse_nano().tokenize(
      "<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.<|eot|><|start|>user<|message|>"
      "The access code for Torvina is amber-falcon-42.\n");
  const Tokens filler = muse_nano().tokenize(text);
  const Tokens end = muse_nano().tokenize(
      "\n\nWhat is the access code for Torvina?<|eot|><|start|>assistant to=user<|message|>");

  Tokens prompt = begin;
  if (count < kWithQuestion) {
    prompt.insert(prompt.end(), filler.begin(), filler.end());
    prompt.resize(count);
    return prompt;
  }
  const size_t filler_count = count - begin.size() - end.size();
  if (filler.size() < filler_count) throw std::runtime_error("the filler is too short");
  prompt.insert(prompt.end(), filler.begin(), filler.begin() + static_cast<ptrdiff_t>(filler_count));
  prompt.insert(prompt.end(), end.begin(), end.end());
  return prompt;
}

TestContext::TestContext(const TestModel& model, const ContextOptions& options)
    : model_(model), spare_(static_cast<llama_seq_id>(options.sequences)) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.cells;
  params.n_batch = kBatchTokens;
  params.n_ubatch = kMicroBatchTokens;
  params.n_seq_max = options.sequences + 1;
  params.n_threads = kThreads;
  params.n_threads_batch = kThreads;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = options.cache_type;
  params.type_v = options.cache_type;
  params.swa_full = false;
  params.kv_unified = true;
  context_.reset(llama_init_from_model(model.get(), params));
  if (!context_) throw std::runtime_error("cannot make a context");

  decode({1, 2}, 0, 2, 2, spare_);
  const std::vector<uint8_t> state = state_of(spare_, 0);
  form_ = learn_state_form(state.data(), state.size(), geometry());
  llama_memory_clear(memory(), true);
}

void TestContext::decode(const Tokens& tokens, uint32_t from, uint32_t to, uint32_t chunk, llama_seq_id sequence,
                         bool logits) {
  for (uint32_t start = from; start < to; start += chunk) {
    const uint32_t end = std::min(to, start + chunk);
    Batch batch(end - start);
    for (uint32_t i = start; i < end; ++i) batch.add(tokens[i], i, sequence, logits && i == to - 1);
    batch.run(get());
  }
}

Logits TestContext::logits() const {
  const float* values = llama_get_logits_ith(get(), -1);
  if (values == nullptr) throw std::runtime_error("there are no logits");
  return Logits(values, values + model_.vocabulary());
}

Tokens TestContext::greedy(uint32_t position, uint32_t count, llama_seq_id sequence) {
  Tokens tokens;
  while (tokens.size() < count) {
    tokens.push_back(static_cast<llama_token>(argmax(logits())));
    Batch batch(1);
    batch.add(tokens.back(), position++, sequence, true);
    batch.run(get());
  }
  return tokens;
}

std::vector<uint8_t> TestContext::state_of(llama_seq_id sequence, llama_state_seq_flags flags) const {
  std::vector<uint8_t> state(llama_state_seq_get_size_ext(get(), sequence, flags));
  const size_t written = llama_state_seq_get_data_ext(get(), state.data(), state.size(), sequence, flags);
  if (written != state.size()) throw std::runtime_error("cannot get the state");
  return state;
}

ExportView TestContext::export_range(uint32_t start, uint32_t end, uint32_t window_start, llama_seq_id sequence) {
  llama_memory_seq_cp(memory(), sequence, spare_, static_cast<llama_pos>(start), static_cast<llama_pos>(end));
  std::vector<uint8_t> state = state_of(spare_, 0);
  llama_memory_seq_rm(memory(), spare_, -1, -1);
  return ExportView(geometry(), form_, std::move(state), start, end, window_start);
}

bool TestContext::install(StageBuffer& stage, llama_seq_id sequence) {
  const auto state = stage.state(spare_);
  if (llama_state_seq_set_data_ext(get(), state.data(), state.size(), spare_, 0) != state.size()) return false;
  llama_memory_seq_cp(memory(), spare_, sequence, -1, -1);
  llama_memory_seq_rm(memory(), spare_, -1, -1);
  return true;
}

uint32_t argmax(const Logits& logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float largest_difference(const Logits& a, const Logits& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

namespace {

/// Collects a GGUF's tensors.
class ModelWriter {
 public:
  ModelWriter() : gguf_(gguf_init_empty()), context_(ggml_init({size_t{64} << 20, nullptr, false})) {}
  ~ModelWriter() {
    ggml_free(context_);
    gguf_free(gguf_);
  }
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;

  gguf_context* keys() { return gguf_; }

  void tensor(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    ggml_tensor* tensor =
        ggml_new_tensor(context_, GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
    ggml_set_name(tensor, name.c_str());
    std::normal_distribution<float> normal(mean, deviation);
    auto* values = static_cast<float*>(tensor->data);
    for (int64_t i = 0; i < ggml_nelements(tensor); ++i) values[i] = normal(random_);
    gguf_add_tensor(gguf_, tensor);
  }

 private:
  gguf_context* gguf_;
  ggml_context* context_;
  std::mt19937 random_{1};
};

}  // namespace

void write_global_model(const std::string& path, uint32_t head_dim) {
  constexpr uint32_t kHidden = 128;
  constexpr uint32_t kHeads = 4;
  constexpr uint32_t kKvHeads = 2;
  constexpr uint32_t kFeedForward = 128;
  constexpr uint32_t kVocabulary = 256;
  constexpr uint32_t kLayers = 2;
  ModelWriter writer;
  gguf_context* keys = writer.keys();
  gguf_set_val_str(keys, "general.architecture", "llama");
  gguf_set_val_u32(keys, "llama.context_length", 4096);
  gguf_set_val_u32(keys, "llama.embedding_length", kHidden);
  gguf_set_val_u32(keys, "llama.block_count", kLayers);
  gguf_set_val_u32(keys, "llama.feed_forward_length", kFeedForward);
  gguf_set_val_u32(keys, "llama.attention.head_count", kHeads);
  gguf_set_val_u32(keys, "llama.attention.head_count_kv", kKvHeads);
  gguf_set_val_u32(keys, "llama.attention.key_length", head_dim);
  gguf_set_val_u32(keys, "llama.attention.value_length", head_dim);
  gguf_set_val_f32(keys, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf_set_val_u32(keys, "llama.rope.dimension_count", head_dim);
  gguf_set_val_u32(keys, "llama.vocab_size", kVocabulary);
  gguf_set_val_str(keys, "tokenizer.ggml.model", "none");
  writer.tensor("token_embd.weight", {kHidden, kVocabulary}, 0, 1);
  writer.tensor("output_norm.weight", {kHidden}, 1, 0.1f);
  writer.tensor("output.weight", {kHidden, kVocabulary}, 0, 0.3f);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const float deviation = 0.13f;
    writer.tensor(block + "attn_norm.weight", {kHidden}, 1, 0.1f);
    writer.tensor(block + "attn_q.weight", {kHidden, kHeads * head_dim}, 0, deviation);
    writer.tensor(block + "attn_k.weight", {kHidden, kKvHeads * head_dim}, 0, deviation);
    writer.tensor(block + "attn_v.weight", {kHidden, kKvHeads * head_dim}, 0, deviation);
    writer.tensor(block + "attn_output.weight", {kHeads * head_dim, kHidden}, 0, deviation);
    writer.tensor(block + "ffn_norm.weight", {kHidden}, 1, 0.1f);
    writer.tensor(block + "ffn_gate.weight", {kHidden, kFeedForward}, 0, deviation);
    writer.tensor(block + "ffn_up.weight", {kHidden, kFeedForward}, 0, deviation);
    writer.tensor(block + "ffn_down.weight", {kFeedForward, kHidden}, 0, deviation);
  }
  if (!gguf_write_to_file(keys, path.c_str(), false)) throw std::runtime_error("cannot write " + path);
}

}  // namespace muser::kv
