#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "llama.h"

namespace muser {

struct SamplingOptions {
  float temperature = 0;  ///< 0 = greedy
  int32_t top_k = 0;      ///< 0 = off
  float top_p = 1;        ///< 1 = off
  float min_p = 0;        ///< 0 = off
  float repeat_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t penalty_last_n = 0;
  uint32_t seed = 0;
  std::vector<llama_logit_bias> logit_bias;
};

/// llama.cpp's samplers in its usual order: bias, penalties, then greedy or top-k, top-p, min-p, temperature, draw.
/// Penalties see the sampled tokens only, never the prompt.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, int32_t vocabulary_size);

  /// Chooses a token and remembers it. Throws ENGINE_FAILED when no logit is a number.
  llama_token sample(const float* logits);

 private:
  struct Deleter {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
  };

  void add(llama_sampler* sampler);
  llama_token greatest(const float* logits) const;

  int32_t vocabulary_size_;
  bool plain_greedy_;
  std::unique_ptr<llama_sampler, Deleter> chain_;
  std::vector<llama_token_data> candidates_;
};

}  // namespace muser
