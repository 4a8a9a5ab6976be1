#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <string>

namespace muser::tools {

/// Loads llama.cpp's backends once and shows only its errors.
void start_llama();

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPointer = std::unique_ptr<llama_model, FreeModel>;
using ContextPointer = std::unique_ptr<llama_context, FreeContext>;

/// Both throw std::runtime_error when llama.cpp refuses.
ModelPointer load_model(const std::string& path);
ContextPointer make_context(llama_model* model, const llama_context_params& params);

/// Our engine's settings: unified KV, small window cache.
llama_context_params context_params(uint32_t cells, uint32_t sequences, uint32_t threads, bool flash_attention);

/// A batch with room for `capacity` tokens of one sequence each.
class Batch {
 public:
  explicit Batch(uint32_t capacity);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  void add(llama_token token, uint32_t position, llama_seq_id sequence, bool logits);
  /// Throws std::runtime_error when llama_decode fails.
  void run(llama_context* context);

 private:
  llama_batch batch_;
};

double seconds_now();

}  // namespace muser::tools
