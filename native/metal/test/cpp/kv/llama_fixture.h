#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "export_view.h"
#include "stage_buffer.h"
#include "state_form.h"

namespace muser::kv {

using Tokens = std::vector<llama_token>;
using Logits = std::vector<float>;

/// A loaded model. The first one loads llama.cpp's backends too.
class TestModel {
 public:
  explicit TestModel(const std::string& path);

  llama_model* get() const { return model_.get(); }
  const Geometry& geometry() const { return geometry_; }
  int32_t vocabulary() const { return llama_vocab_n_tokens(llama_model_get_vocab(get())); }
  Tokens tokenize(const std::string& text) const;

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  std::unique_ptr<llama_model, Free> model_;
  Geometry geometry_;
};

/// muse-nano, loaded once.
const TestModel& muse_nano();

/// A chat of exactly `count` tokens (the beginning of one below 200) that asks for a fact from its first lines.
Tokens needle_prompt(uint32_t count);

struct ContextOptions {
  bool flash_attention = false;
  ggml_type cache_type = GGML_TYPE_F16;
  uint32_t sequences = 1;
  uint32_t cells = 8448;
};

/// A context with one spare sequence id, and the calls that the engine makes for a hand-off.
class TestContext {
 public:
  TestContext(const TestModel& model, const ContextOptions& options);

  /// Computes tokens[from, to) in chunks; keeps the logits of the very last token when `logits` is set.
  void decode(const Tokens& tokens, uint32_t from, uint32_t to, uint32_t chunk, llama_seq_id sequence = 0,
              bool logits = false);
  Logits logits() const;
  /// Greedy tokens after the logits of the last decode.
  Tokens greedy(uint32_t position, uint32_t count, llama_seq_id sequence = 0);

  ExportView export_range(uint32_t start, uint32_t end, uint32_t window_start, llama_seq_id sequence = 0);
  /// Installs a complete stage; returns whether llama.cpp took all of it.
  bool install(StageBuffer& stage, llama_seq_id sequence = 0);

  const StateForm& form() const { return form_; }
  const Geometry& geometry() const { return model_.geometry(); }
  llama_context* get() const { return context_.get(); }
  llama_memory_t memory() const { return llama_get_memory(get()); }
  llama_seq_id spare() const { return spare_; }
  std::vector<uint8_t> state_of(llama_seq_id sequence, llama_state_seq_flags flags) const;

 private:
  struct Free {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  const TestModel& model_;
  std::unique_ptr<llama_context, Free> context_;
  llama_seq_id spare_;
  StateForm form_;
};

uint32_t argmax(const Logits& logits);
float largest_difference(const Logits& a, const Logits& b);

/// Writes a GGUF of the llama architecture (global layers only, interleaved K) with random weights.
void write_global_model(const std::string& path, uint32_t head_dim);

}  // namespace muser::kv
