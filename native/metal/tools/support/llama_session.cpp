#include "llama_session.h"

#include <ggml-backend.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>

namespace muser::tools {

void start_llama() {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  ggml_backend_load_all_from_path(MUSER_LLAMA_LIBRARIES);
  llama_backend_init();
}

ModelPointer load_model(const std::string& path) {
  ModelPointer model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  if (!model) throw std::runtime_error("llama.cpp cannot load " + path);
  return model;
}

ContextPointer make_context(llama_model* model, const llama_context_params& params) {
  ContextPointer context(llama_init_from_model(model, params));
  if (!context) {
    throw std::runtime_error("llama.cpp cannot make a context of " + std::to_string(params.n_ctx) + " cells");
  }
  return context;
}

llama_context_params context_params(uint32_t cells, uint32_t sequences, uint32_t threads, bool flash_attention) {
  constexpr uint32_t kMicroBatchTokens = 512;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = cells;
  params.n_batch = 2048;
  params.n_ubatch = kMicroBatchTokens;
  params.n_seq_max = sequences;
  params.n_threads = static_cast<int32_t>(threads);
  params.n_threads_batch = static_cast<int32_t>(threads);
  params.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.kv_unified = true;
  params.swa_full = false;
  return params;
}

Batch::Batch(uint32_t capacity) : batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}

Batch::~Batch() { llama_batch_free(batch_); }

void Batch::add(llama_token token, uint32_t position, llama_seq_id sequence, bool logits) {
  const int32_t i = batch_.n_tokens++;
  batch_.token[i] = token;
  batch_.pos[i] = static_cast<llama_pos>(position);
  batch_.n_seq_id[i] = 1;
  batch_.seq_id[i][0] = sequence;
  batch_.logits[i] = logits ? 1 : 0;
}

void Batch::run(llama_context* context) {
  const int32_t result = llama_decode(context, batch_);
  if (result != 0) throw std::runtime_error("llama_decode gave " + std::to_string(result));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace muser::tools
