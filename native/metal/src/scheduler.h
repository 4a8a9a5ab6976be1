#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "sequence.h"

namespace muser {

/// Counters that other threads may read.
struct SchedulerCounters {
  std::atomic<uint64_t> decoded_tokens{0};
  std::atomic<uint64_t> prefilled_tokens{0};
  std::atomic<uint32_t> queue_depth{0};  ///< operations submitted and not yet ended
};

/// Continuous batching: every step evaluates one token of each sequence that decodes and, beside them, at most one
/// chunk's worth of prompt tokens, so that a long prefill holds decodes up by one chunk at most. Prefilling sequences
/// take turns. Lives on the engine thread.
class Scheduler {
 public:
  Scheduler(Context& context, const Model& model, const EngineOptions& options, SchedulerCounters& counters);

  void submit(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Operation> operation);

  /// Ends cancelled operations, runs immediate ones, evaluates one batch. False when there was nothing to do. Throws
  /// when the cache broke and could not be built again.
  bool step();

  /// Ends every operation with this error; those that free something run.
  void fail_all(const EngineError& error);

  /// Sequences whose rows are lost when the cache is.
  void adopt(const std::shared_ptr<Sequence>& sequence);
  void forget(const Sequence& sequence);

 private:
  /// A sequence's share of the current batch.
  struct Share {
    std::shared_ptr<Sequence> sequence;
    std::shared_ptr<RunOperation> operation;
    uint32_t tokens = 0;
    int32_t logits_index = -1;
  };

  void drop_cancelled();
  bool run_immediate();
  void run_immediate(Sequence& sequence, ImmediateOperation& operation);
  bool start(Sequence& sequence, RunOperation& operation);
  void add_decodes();
  void add_chunks();
  uint32_t chunk_length(const Sequence& sequence, const RunOperation& operation) const;
  void add_chunk(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<RunOperation>& operation,
                 uint32_t tokens);
  void evaluate();
  void finish_share(const Share& share);
  void after_prefill(Sequence& sequence, RunOperation& operation, const Share& share);
  void after_decode(Sequence& sequence, RunOperation& operation, const Share& share);
  std::string deliver(Sequence& sequence, RunOperation& operation, llama_token token);
  void complete(Sequence& sequence, RunOperation& operation, const float* logits, const std::string& reason);
  void end_head(Sequence& sequence);
  void fail_head(Sequence& sequence, const EngineError& error);
  void context_is_broken(const EngineError& cause);
  std::shared_ptr<RunOperation> running(Sequence& sequence) const;

  Context& context_;
  const Model& model_;
  EngineOptions options_;
  SchedulerCounters& counters_;
  Batch batch_;
  std::vector<std::shared_ptr<Sequence>> sequences_;
  std::vector<Share> shares_;
  uint64_t turn_ = 0;
};

}  // namespace muser
