#include "model.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "backend.h"
#include "error.h"

namespace muser {

namespace {

constexpr size_t kMaxTextBytes = 64U << 20;
constexpr int32_t kAllLayers = 1 << 20;

std::optional<llama_token> present(llama_token token) {
  return token == LLAMA_TOKEN_NULL ? std::nullopt : std::optional<llama_token>(token);
}

std::string description_of(const llama_model* model) {
  char text[256];
  llama_model_desc(model, text, sizeof text);
  return text;
}

/// llama.cpp gives a text's length first, then the text.
template <typename Get>
std::string text_from(Get get) {
  const int32_t length = get(nullptr, 0);
  if (length < 0) return {};
  std::string text(static_cast<size_t>(length) + 1, '\0');
  get(text.data(), text.size());
  text.resize(static_cast<size_t>(length));
  return text;
}

std::vector<std::pair<std::string, std::string>> metadata_of(const llama_model* model) {
  std::vector<std::pair<std::string, std::string>> metadata;
  const int32_t count = llama_model_meta_count(model);
  for (int32_t i = 0; i < count; ++i) {
    metadata.emplace_back(
        text_from([&](char* text, size_t size) { return llama_model_meta_key_by_index(model, i, text, size); }),
        text_from([&](char* text, size_t size) { return llama_model_meta_val_str_by_index(model, i, text, size); }));
  }
  return metadata;
}

/// Models that are loaded or being loaded, so that the same file is never loaded twice.
class Registry {
 public:
  /// A loaded model, or null when the caller now has to load it and call `finish`.
  std::shared_ptr<const Model> find_or_begin(const std::string& key, const std::atomic<bool>* cancelled) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (auto model = loaded_[key].lock()) return model;
      if (loading_.insert(key).second) return nullptr;
      // Another load of this file runs. A cancel has no way to wake us, so look from time to time.
      finished_.wait_for(lock, std::chrono::milliseconds(20));
      if (cancelled != nullptr && cancelled->load()) throw EngineError(ErrorCode::Cancelled, "loading was cancelled");
    }
  }

  void finish(const std::string& key, const std::shared_ptr<const Model>& model) {
    const std::lock_guard lock(mutex_);
    loading_.erase(key);
    if (model) {
      loaded_[key] = model;
    } else {
      loaded_.erase(key);
    }
    finished_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::map<std::string, std::weak_ptr<const Model>> loaded_;
  std::set<std::string> loading_;
};

Registry& registry() {
  static auto* instance = new Registry();  // outlives every thread
  return *instance;
}

bool report_progress(float fraction, void* data) {
  const auto* request = static_cast<const LoadRequest*>(data);
  if (request->cancelled != nullptr && request->cancelled->load()) return false;
  if (request->on_progress) request->on_progress(fraction);
  return true;
}

std::shared_ptr<const Model> load_weights(const ModelFile& file, const LoadRequest& request) {
  llama_model_params parameters = llama_model_default_params();
  parameters.n_gpu_layers = request.gpu_layers.value_or(kAllLayers);
  parameters.progress_callback = report_progress;
  parameters.progress_callback_user_data = const_cast<LoadRequest*>(&request);
  LogCapture capture;
  std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(file.path.c_str(), parameters), llama_model_free);
  if (!model) {
    if (request.cancelled != nullptr && request.cancelled->load()) {
      throw EngineError(ErrorCode::Cancelled, "loading was cancelled");
    }
    throw EngineError(ErrorCode::ModelLoadFailed, capture.first_error("llama.cpp could not load the file"));
  }
  CacheForm cache = find_cache_form(model.get(), request.threads, request.cancelled);
  return std::make_shared<const Model>(model.release(), file, std::move(cache),
                                       parameters.n_gpu_layers > 0 && has_gpu());
}

}  // namespace

Model::Model(llama_model* model, const ModelFile& file, CacheForm cache, bool on_gpu)
    : model_(model),
      vocab_(llama_model_get_vocab(model)),
      has_tokenizer_(llama_vocab_type(vocab_) != LLAMA_VOCAB_TYPE_NONE),
      on_gpu_(on_gpu) {
  info_.path = file.path;
  info_.name = file.name;
  info_.architecture = file.architecture;
  info_.description = description_of(model);
  info_.file_bytes = file.bytes;
  info_.parameters = llama_model_n_params(model);
  info_.trained_context_tokens = static_cast<uint32_t>(llama_model_n_ctx_train(model));
  info_.vocabulary_size = static_cast<uint32_t>(llama_vocab_n_tokens(vocab_));
  info_.cache = std::move(cache);
  if (const char* text = llama_model_chat_template(model, nullptr)) info_.chat_template = text;
  info_.bos_token = present(llama_vocab_bos(vocab_));
  info_.eos_token = present(llama_vocab_eos(vocab_));
  info_.eot_token = present(llama_vocab_eot(vocab_));
  if (info_.bos_token) info_.bos_text = piece(*info_.bos_token, true);
  info_.add_bos = llama_vocab_get_add_bos(vocab_);
  info_.metadata = metadata_of(model);
}

Model::~Model() { llama_model_free(model_); }

std::vector<llama_token> Model::tokenize(const std::string& text, bool special) const {
  if (!has_tokenizer_) throw EngineError(ErrorCode::ModelUnsupported, "this model has no tokenizer");
  if (text.size() > kMaxTextBytes) {
    throw EngineError(ErrorCode::InvalidArgument, "the text has " + std::to_string(text.size()) +
                                                      " bytes, allowed are " + std::to_string(kMaxTextBytes));
  }
  const auto length = static_cast<int32_t>(text.size());
  std::vector<llama_token> tokens(text.size() / 2 + 16);
  int32_t count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), false,
                                 special);
  if (count < 0) {
    tokens.resize(static_cast<size_t>(-static_cast<int64_t>(count)));
    count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), false,
                           special);
  }
  if (count < 0) throw EngineError(ErrorCode::EngineFailed, "the tokenizer gave no tokens");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string Model::piece(llama_token token, bool special) const {
  check_tokens("token", &token, 1);
  if (!has_tokenizer_) return {};
  std::string text(64, '\0');
  int32_t length = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, special);
  if (length < 0) {
    text.resize(static_cast<size_t>(-length));
    length = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, special);
  }
  text.resize(static_cast<size_t>(std::max(length, 0)));
  return text;
}

bool Model::is_end_of_generation(llama_token token) const {
  check_tokens("token", &token, 1);
  return llama_vocab_is_eog(vocab_, token);
}

void Model::check_tokens(const char* what, const llama_token* tokens, size_t count) const {
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= info_.vocabulary_size) {
      throw EngineError(ErrorCode::RangeViolation, std::string(what) + " " + std::to_string(i) +
                                              " is outside the vocabulary of " + std::to_string(info_.vocabulary_size));
    }
  }
}

std::shared_ptr<const Model> load_model(const LoadRequest& request) {
  ModelFile file = find_model_file(request.path);
  const std::string key = file.key() + '\n' + std::to_string(request.gpu_layers.value_or(kAllLayers));
  if (auto model = registry().find_or_begin(key, request.cancelled)) {
    if (request.on_progress) request.on_progress(1.0F);
    return model;
  }
  std::shared_ptr<const Model> model;
  try {
    read_model_header(file);
    model = load_weights(file, request);
  } catch (...) {
    registry().finish(key, nullptr);
    throw;
  }
  registry().finish(key, model);
  return model;
}

}  // namespace muser
