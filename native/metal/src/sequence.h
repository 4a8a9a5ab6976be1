#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "error.h"
#include "kv/ledger.h"
#include "llama.h"
#include "output.h"
#include "sampling.h"

namespace muser {

class Context;
class Sequence;

struct GenerateTimings {
  double last_prompt_token_ms = 0;
  double first_token_ms = 0;
  double done_ms = 0;
};

struct GenerateResult {
  std::string reason;  ///< stop, length, context
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  GenerateTimings timings;
};

struct GenerateOptions {
  uint32_t max_tokens = 0;
  SamplingOptions sampling;
  std::vector<llama_token> stop_tokens;
  std::vector<std::string> stop_strings;
};

/// Work on one sequence. The operations of a sequence run one after the other, in the order of their submission.
/// Everything but `cancel` happens on the engine thread.
class Operation {
 public:
  using Failed = std::function<void(const EngineError&)>;

  explicit Operation(Failed failed) : failed_(std::move(failed)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// From any thread. The engine ends the operation between two micro-batches.
  void cancel() { cancelled_.store(true); }
  bool cancelled() const { return cancelled_.load(); }
  void fail(const EngineError& error) { failed_(error); }

 private:
  std::atomic<bool> cancelled_{false};
  Failed failed_;
};

/// Work that needs no batch: install, export, fork, truncate, pack, dispose.
class ImmediateOperation : public Operation {
 public:
  using Work = std::function<void(Context&, Sequence&)>;

  /// `frees`: runs even when the rows are lost or the engine closes.
  ImmediateOperation(Work work, std::function<void()> done, Failed failed, bool frees = false)
      : Operation(std::move(failed)), work_(std::move(work)), done_(std::move(done)), frees_(frees) {}

  void run(Context& context, Sequence& sequence) { work_(context, sequence); }
  void done() { done_(); }
  bool frees() const { return frees_; }

 private:
  Work work_;
  std::function<void()> done_;
  bool frees_;
};

/// Tokens to be evaluated, and for a generation what is to be sampled after them.
class RunOperation : public Operation {
 public:
  struct Callbacks {
    std::function<void(uint32_t done)> progress;                                    ///< may be empty
    std::function<void(std::string&& text, const std::vector<llama_token>&)> output;  ///< empty when evaluating only
    std::function<void(const GenerateResult&)> done;
    Failed failed;
  };

  RunOperation(std::vector<llama_token> tokens, std::optional<GenerateOptions> generate, uint32_t vocabulary_size,
               Callbacks callbacks);

  bool generates() const { return generate_.has_value(); }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(tokens_.size()); }
  /// Tokens that are evaluated in chunks: all, or all but the last when a generation follows.
  uint32_t chunked_tokens() const { return generates() ? prompt_tokens() - 1 : prompt_tokens(); }
  bool prefilling() const { return evaluated_ < chunked_tokens(); }

 private:
  friend class Scheduler;

  double elapsed_ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - submitted_).count();
  }

  std::vector<llama_token> tokens_;
  std::optional<GenerateOptions> generate_;
  Callbacks callbacks_;
  std::optional<Sampler> sampler_;
  OutputText output_;
  std::chrono::steady_clock::time_point submitted_ = std::chrono::steady_clock::now();
  uint32_t evaluated_ = 0;     ///< of the prompt
  llama_token next_ = -1;      ///< to be evaluated in the next decode step
  uint32_t generated_ = 0;
  GenerateTimings timings_;
};

/// One conversation's place in the cache. `position`, `reserved_tokens` and `logits` may be read on any thread; the rest
/// belongs to the engine thread.
class Sequence {
 public:
  Sequence(llama_seq_id id, uint32_t reserved_tokens, const kv::Geometry& geometry)
      : id_(id), reserved_tokens_(reserved_tokens), ledger_(geometry) {}

  llama_seq_id id() const { return id_; }
  uint32_t reserved_tokens() const { return reserved_tokens_.load(); }
  uint32_t position() const { return position_.load(); }

  /// Throws SEQUENCE_STATE when nothing was evaluated or the last operation kept none.
  std::vector<float> logits() const;

 private:
  friend class Scheduler;
  friend class Engine;

  void keep_logits(const float* logits, uint32_t count);
  void forget_logits();
  void publish_position() { position_.store(ledger_.position()); }

  const llama_seq_id id_;
  std::atomic<uint32_t> reserved_tokens_;  ///< written by the engine thread, with the engine's count
  kv::SequenceLedger ledger_;
  std::atomic<uint32_t> position_{0};
  std::deque<std::shared_ptr<Operation>> operations_;
  bool head_started_ = false;
  std::string failure_;      ///< why the rows are lost; empty = they are not
  uint64_t last_served_ = 0;  ///< prefill turn, for fairness
  mutable std::mutex logits_mutex_;
  std::vector<float> logits_;
};

}  // namespace muser
