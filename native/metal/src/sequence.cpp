#include "sequence.h"

namespace muser {

RunOperation::RunOperation(std::vector<llama_token> tokens, std::optional<GenerateOptions> generate,
                           uint32_t vocabulary_size, Callbacks callbacks)
    : Operation(callbacks.failed),
      tokens_(std::move(tokens)),
      generate_(std::move(generate)),
      callbacks_(std::move(callbacks)),
      output_(generate_ ? generate_->stop_strings : std::vector<std::string>()) {
  if (!generate_) return;
  sampler_.emplace(generate_->sampling, static_cast<int32_t>(vocabulary_size));
  next_ = tokens_.back();
}

std::vector<float> Sequence::logits() const {
  const std::lock_guard lock(logits_mutex_);
  if (logits_.empty()) throw EngineError(ErrorCode::SequenceState, "no logits are kept: evaluate tokens first");
  return logits_;
}

void Sequence::keep_logits(const float* logits, uint32_t count) {
  const std::lock_guard lock(logits_mutex_);
  logits_.assign(logits, logits + count);
}

void Sequence::forget_logits() {
  const std::lock_guard lock(logits_mutex_);
  logits_.clear();
}

}  // namespace muser
