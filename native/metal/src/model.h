#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache_form.h"
#include "llama.h"
#include "model_file.h"

namespace muser {

struct ModelInfo {
  std::string path;
  std::string name;
  std::string architecture;
  std::string description;
  uint64_t file_bytes = 0;
  uint64_t parameters = 0;
  uint32_t trained_context_tokens = 0;
  uint32_t vocabulary_size = 0;
  CacheForm cache;
  std::optional<std::string> chat_template;
  std::optional<llama_token> bos_token;
  std::optional<llama_token> eos_token;
  std::optional<llama_token> eot_token;
  std::string bos_text;
  bool add_bos = false;
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Loaded weights and their tokenizer. Immutable, safe from several threads.
class Model {
 public:
  /// Takes `model` over.
  Model(llama_model* model, const ModelFile& file, CacheForm cache, bool on_gpu);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const { return info_; }
  llama_model* llama() const { return model_; }
  bool on_gpu() const { return on_gpu_; }

  /// Throws INVALID_ARGUMENT when the text is too long, MODEL_UNSUPPORTED when the model has no tokenizer.
  std::vector<llama_token> tokenize(const std::string& text, bool special) const;
  /// Bytes of a token; those of control tokens only with `special`. Throws RANGE_VIOLATION on an unknown id.
  std::string piece(llama_token token, bool special) const;
  bool is_end_of_generation(llama_token token) const;
  /// Throws RANGE_VIOLATION, with `what` and the place in the list, when a token is not in the vocabulary.
  void check_tokens(const char* what, const llama_token* tokens, size_t count) const;

 private:
  llama_model* model_;
  const llama_vocab* vocab_;
  bool has_tokenizer_;
  bool on_gpu_;
  ModelInfo info_;
};

struct LoadRequest {
  std::string path;
  std::optional<int32_t> gpu_layers;
  int32_t threads = 1;  ///< CPU threads that evaluate the tokens by which the cache's form is found
  std::function<void(float fraction)> on_progress;  ///< on the loading thread; may be empty
  const std::atomic<bool>* cancelled = nullptr;     ///< must outlive the call
};

/// Loads a model or shares one that is loaded already from the same file with the same number of GPU layers. Blocks.
std::shared_ptr<const Model> load_model(const LoadRequest& request);

}  // namespace muser
