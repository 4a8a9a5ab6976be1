#include "scheduler.h"

#include <algorithm>

#include "error.h"

namespace muser {

Scheduler::Scheduler(Context& context, const Model& model, const EngineOptions& options, SchedulerCounters& counters)
    : context_(context),
      model_(model),
      options_(options),
      counters_(counters),
      batch_(CachePlan(model.info().cache.geometry, options).batch_tokens()) {}

void Scheduler::adopt(const std::shared_ptr<Sequence>& sequence) {
  if (std::find(sequences_.begin(), sequences_.end(), sequence) == sequences_.end()) sequences_.push_back(sequence);
}

void Scheduler::submit(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Operation> operation) {
  counters_.queue_depth.fetch_add(1);
  adopt(sequence);
  sequence->operations_.push_back(std::move(operation));
}

void Scheduler::forget(const Sequence& sequence) {
  std::erase_if(sequences_, [&](const auto& entry) { return entry.get() == &sequence; });
}

bool Scheduler::step() {
  drop_cancelled();
  const bool worked = run_immediate();
  batch_.clear();
  shares_.clear();
  add_decodes();
  add_chunks();
  if (batch_.empty()) return worked;
  evaluate();
  return true;
}

void Scheduler::drop_cancelled() {
  const EngineError error(ErrorCode::Cancelled, "cancelled");
  for (const auto& sequence : sequences_) {
    auto& operations = sequence->operations_;
    while (!operations.empty() && operations.front()->cancelled()) fail_head(*sequence, error);
    for (size_t i = 1; i < operations.size();) {
      if (!operations[i]->cancelled()) {
        ++i;
        continue;
      }
      const auto operation = operations[i];
      operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(i));
      counters_.queue_depth.fetch_sub(1);
      operation->fail(error);
    }
  }
}

/// Runs what needs no batch at the head of each queue, and lets the next run operation there begin.
bool Scheduler::run_immediate() {
  bool worked = false;
  // A copy: disposing takes a sequence out of the list.
  for (const auto& sequence : std::vector(sequences_)) {
    while (!sequence->operations_.empty()) {
      const auto operation = sequence->operations_.front();
      if (auto* immediate = dynamic_cast<ImmediateOperation*>(operation.get())) {
        run_immediate(*sequence, *immediate);
      } else if (sequence->head_started_ || start(*sequence, static_cast<RunOperation&>(*operation))) {
        break;
      }
      worked = true;
    }
  }
  return worked;
}

void Scheduler::run_immediate(Sequence& sequence, ImmediateOperation& operation) {
  const auto keep_alive = sequence.operations_.front();
  try {
    if (!sequence.failure_.empty() && !operation.frees()) {
      throw EngineError(ErrorCode::SequenceState, sequence.failure_);
    }
    operation.run(context_, sequence);
  } catch (...) {
    const EngineError error = current_error();
    fail_head(sequence, error);
    if (error.code() == ErrorCode::EngineFailed) context_is_broken(error);
    return;
  }
  end_head(sequence);
  operation.done();
}

/// Checks a run operation against the sequence. False when it was refused.
bool Scheduler::start(Sequence& sequence, RunOperation& operation) {
  const uint64_t end = static_cast<uint64_t>(sequence.position()) + operation.prompt_tokens();
  std::string reason = sequence.failure_;
  ErrorCode code = ErrorCode::SequenceState;
  if (reason.empty() && end > sequence.reserved_tokens()) {
    code = ErrorCode::ContextFull;
    reason = "the prompt ends at token " + std::to_string(end) + ", reserved are " +
             std::to_string(sequence.reserved_tokens());
  }
  if (reason.empty()) {
    code = ErrorCode::SequenceState;
    reason = sequence.ledger_.can_decode(operation.prompt_tokens());
  }
  if (!reason.empty()) {
    fail_head(sequence, EngineError(code, reason));
    return false;
  }
  sequence.head_started_ = true;
  sequence.forget_logits();
  return true;
}

std::shared_ptr<RunOperation> Scheduler::running(Sequence& sequence) const {
  if (!sequence.head_started_ || sequence.operations_.empty()) return nullptr;
  return std::static_pointer_cast<RunOperation>(sequence.operations_.front());
}

void Scheduler::add_decodes() {
  for (const auto& sequence : sequences_) {
    const auto operation = running(*sequence);
    if (!operation || operation->prefilling()) continue;
    const int32_t index = batch_.add(operation->next_, sequence->position(), sequence->id(), true);
    shares_.push_back({sequence, operation, 1, index});
  }
}

void Scheduler::add_chunks() {
  std::vector<std::shared_ptr<Sequence>> waiting;
  for (const auto& sequence : sequences_) {
    const auto operation = running(*sequence);
    if (operation && operation->prefilling()) waiting.push_back(sequence);
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const auto& a, const auto& b) { return a->last_served_ < b->last_served_; });
  uint32_t room = options_.chunk_tokens;
  for (const auto& sequence : waiting) {
    const auto operation = running(*sequence);
    const uint32_t tokens = chunk_length(*sequence, *operation);
    if (tokens > room) continue;
    room -= tokens;
    add_chunk(sequence, operation, tokens);
  }
}

/// Chunks end at multiples of chunkTokens, so that the same prompt is cut in the same way wherever it starts.
uint32_t Scheduler::chunk_length(const Sequence& sequence, const RunOperation& operation) const {
  const uint32_t to_border = options_.chunk_tokens - sequence.position() % options_.chunk_tokens;
  return std::min(to_border, operation.chunked_tokens() - operation.evaluated_);
}

void Scheduler::add_chunk(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<RunOperation>& operation,
                          uint32_t tokens) {
  sequence->last_served_ = ++turn_;
  int32_t logits_index = -1;
  for (uint32_t i = 0; i < tokens; ++i) {
    const uint32_t at = operation->evaluated_ + i;
    const bool last_of_all = !operation->generates() && at + 1 == operation->prompt_tokens();
    const int32_t index = batch_.add(operation->tokens_[at], sequence->position() + i, sequence->id(), last_of_all);
    if (last_of_all) logits_index = index;
  }
  shares_.push_back({sequence, operation, tokens, logits_index});
}

void Scheduler::evaluate() {
  try {
    context_.decode(batch_.get());
  } catch (...) {
    // A closing engine aborts its computation: then the cache goes too, and there is nothing to rebuild.
    if (!context_.aborted()) context_is_broken(current_error());
    return;
  }
  for (const Share& share : shares_) {
    try {
      finish_share(share);
    } catch (...) {
      // The batch went well, so only this sequence is at fault (logits that are no numbers, say).
      const EngineError error = current_error();
      share.sequence->failure_ = error.what();
      if (running(*share.sequence) == share.operation) fail_head(*share.sequence, error);
    }
  }
}

void Scheduler::finish_share(const Share& share) {
  Sequence& sequence = *share.sequence;
  sequence.ledger_.after_decode(share.tokens);
  sequence.publish_position();
  if (share.operation->prefilling()) {
    after_prefill(sequence, *share.operation, share);
  } else {
    after_decode(sequence, *share.operation, share);
  }
}

void Scheduler::after_prefill(Sequence& sequence, RunOperation& operation, const Share& share) {
  counters_.prefilled_tokens.fetch_add(share.tokens);
  operation.evaluated_ += share.tokens;
  if (operation.callbacks_.progress) operation.callbacks_.progress(operation.evaluated_);
  if (operation.generates() || operation.prefilling()) return;
  complete(sequence, operation, context_.logits(share.logits_index), "");
}

void Scheduler::after_decode(Sequence& sequence, RunOperation& operation, const Share& share) {
  counters_.decoded_tokens.fetch_add(1);
  const float* logits = context_.logits(share.logits_index);
  const bool first = operation.generated_ == 0;
  if (first) {
    operation.evaluated_ = operation.prompt_tokens();
    operation.timings_.last_prompt_token_ms = operation.elapsed_ms();
    if (operation.callbacks_.progress) operation.callbacks_.progress(operation.evaluated_);
  }
  const llama_token token = operation.sampler_->sample(logits);
  ++operation.generated_;
  if (first) operation.timings_.first_token_ms = operation.elapsed_ms();
  const std::string reason = deliver(sequence, operation, token);
  if (!reason.empty()) complete(sequence, operation, logits, reason);
}

/// Hands a sampled token out. Returns why the generation ends with it, or an empty string.
std::string Scheduler::deliver(Sequence& sequence, RunOperation& operation, llama_token token) {
  const GenerateOptions& options = *operation.generate_;
  const auto& stops = options.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    std::string rest = operation.output_.finish(false);
    if (!rest.empty()) operation.callbacks_.output(std::move(rest), {});
    return "stop";
  }
  std::string text = operation.output_.push(model_.piece(token, false));
  std::string reason;
  if (operation.output_.stopped()) {
    reason = "stop";
  } else if (operation.generated_ >= options.max_tokens) {
    reason = "length";
  } else if (sequence.position() >= sequence.reserved_tokens()) {
    reason = "context";
  }
  if (!reason.empty()) text += operation.output_.finish(true);
  operation.callbacks_.output(std::move(text), {token});
  operation.next_ = token;
  return reason;
}

void Scheduler::complete(Sequence& sequence, RunOperation& operation, const float* logits, const std::string& reason) {
  sequence.keep_logits(logits, model_.info().vocabulary_size);
  operation.timings_.done_ms = operation.elapsed_ms();
  const auto keep_alive = sequence.operations_.front();
  end_head(sequence);
  operation.callbacks_.done({reason, operation.prompt_tokens(), operation.generated_, operation.timings_});
}

void Scheduler::end_head(Sequence& sequence) {
  sequence.operations_.pop_front();
  sequence.head_started_ = false;
  counters_.queue_depth.fetch_sub(1);
}

void Scheduler::fail_head(Sequence& sequence, const EngineError& error) {
  const auto operation = sequence.operations_.front();
  end_head(sequence);
  operation->fail(error);
}

void Scheduler::fail_all(const EngineError& error) {
  for (const auto& sequence : std::vector(sequences_)) {
    while (!sequence->operations_.empty()) {
      auto* immediate = dynamic_cast<ImmediateOperation*>(sequence->operations_.front().get());
      if (immediate != nullptr && immediate->frees()) {
        run_immediate(*sequence, *immediate);
      } else {
        fail_head(*sequence, error);
      }
    }
  }
}

/// llama.cpp may have left rows that would corrupt later answers (llama.cpp #27068): nothing of this cache is kept.
void Scheduler::context_is_broken(const EngineError& cause) {
  const std::string reason = std::string("the rows were lost: ") + cause.what();
  for (const auto& sequence : sequences_) {
    sequence->failure_ = reason;
    sequence->ledger_.clear();
    sequence->publish_position();
    sequence->forget_logits();
  }
  fail_all(EngineError(ErrorCode::EngineFailed, reason));
  context_.rebuild();
}

}  // namespace muser
