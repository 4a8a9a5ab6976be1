#include "sampling.h"

#include <cmath>
#include <limits>

#include "error.h"

namespace muser {

Sampler::Sampler(const SamplingOptions& options, int32_t vocabulary_size)
    : vocabulary_size_(vocabulary_size),
      chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())) {
  const bool penalties = options.penalty_last_n > 0 && (options.repeat_penalty != 1 || options.frequency_penalty != 0 ||
                                                        options.presence_penalty != 0);
  plain_greedy_ = options.temperature == 0 && !penalties && options.logit_bias.empty();
  if (!options.logit_bias.empty()) {
    add(llama_sampler_init_logit_bias(vocabulary_size, static_cast<int32_t>(options.logit_bias.size()),
                                      options.logit_bias.data()));
  }
  if (penalties) {
    add(llama_sampler_init_penalties(vocabulary_size, options.penalty_last_n, options.repeat_penalty,
                                     options.frequency_penalty, options.presence_penalty));
  }
  if (options.temperature == 0) {
    add(llama_sampler_init_greedy());
    return;
  }
  constexpr size_t kKeepAtLeast = 1;
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1) add(llama_sampler_init_top_p(options.top_p, kKeepAtLeast));
  if (options.min_p > 0) add(llama_sampler_init_min_p(options.min_p, kKeepAtLeast));
  add(llama_sampler_init_temp(options.temperature));
  add(llama_sampler_init_dist(options.seed));
}

void Sampler::add(llama_sampler* sampler) {
  if (sampler == nullptr) throw EngineError(ErrorCode::InvalidArgument, "llama.cpp refuses the sampling options");
  llama_sampler_chain_add(chain_.get(), sampler);
}

llama_token Sampler::sample(const float* logits) {
  const llama_token greatest_token = greatest(logits);
  if (plain_greedy_) return greatest_token;
  candidates_.resize(static_cast<size_t>(vocabulary_size_));
  for (llama_token id = 0; id < vocabulary_size_; ++id) candidates_[static_cast<size_t>(id)] = {id, logits[id], 0};
  llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) {
    throw EngineError(ErrorCode::EngineFailed, "the samplers chose no token");
  }
  const llama_token token = array.data[array.selected].id;
  llama_sampler_accept(chain_.get(), token);
  return token;
}

/// The first of the greatest logits. A cache with damaged rows shows as logits that are no numbers.
llama_token Sampler::greatest(const float* logits) const {
  llama_token best = -1;
  float value = -std::numeric_limits<float>::infinity();
  for (llama_token id = 0; id < vocabulary_size_; ++id) {
    if (logits[id] > value) {
      value = logits[id];
      best = id;
    }
  }
  if (best < 0 || !std::isfinite(value)) {
    throw EngineError(ErrorCode::EngineFailed, "the model's logits are no numbers");
  }
  return best;
}

}  // namespace muser
