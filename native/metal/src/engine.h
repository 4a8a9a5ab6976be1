#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "context.h"
#include "kv/export_view.h"
#include "kv/stage_buffer.h"
#include "model.h"
#include "scheduler.h"
#include "sequence.h"

namespace muser {

struct EngineStats {
  uint32_t sequences = 0;
  uint64_t reserved_tokens = 0;
  uint32_t context_tokens = 0;
  uint64_t kv_bytes = 0;
  uint64_t decoded_tokens = 0;
  uint64_t prefilled_tokens = 0;
  uint32_t queue_depth = 0;
};

/// How an asynchronous call ends; both are called on the engine thread.
template <typename... Result>
struct Completion {
  std::function<void(Result...)> done;
  Operation::Failed failed;
};

/// A stage as both threads see it: JavaScript's thread fills it, the engine thread installs it.
class Stage {
 public:
  Stage(const kv::Geometry& geometry, const kv::StateForm& form, uint32_t start, uint32_t end, uint32_t window_start);

  size_t size_bytes() const { return size_bytes_; }
  /// Throws SEQUENCE_STATE once disposed, installed, or while it is being installed.
  void put(uint32_t layer, kv::Kind kind, uint32_t start, uint32_t count, kv::WireType type, const uint8_t* bytes,
           size_t size);
  bool complete();
  void dispose();

 private:
  friend class Engine;

  kv::StageBuffer& buffer();

  std::mutex mutex_;  ///< held by the engine thread for the whole install
  std::unique_ptr<kv::StageBuffer> buffer_;
  const size_t size_bytes_;
};

/// One llama.cpp context, the thread that runs it, and admission to it. All methods may be called on any thread but the
/// engine's own; the destructor waits for the end of the current micro-batch.
class Engine {
 public:
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the thread, which makes the context.
  void start(Completion<> completion);
  /// Cancels everything and ends the thread; `stopped` is called when the cache is freed.
  void stop(std::function<void()> stopped);
  /// As `stop`, and waits for it.
  void stop_and_wait();

  /// Reserves a sequence. Throws CONTEXT_FULL with the numbers, SEQUENCE_STATE once closed.
  std::shared_ptr<Sequence> open(uint32_t reserve_tokens);
  EngineStats stats() const;
  uint64_t sequence_bytes(uint32_t tokens) const { return plan_.sequence_bytes(tokens); }

  /// The operation can be cancelled; call `wake` after that.
  void run(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<RunOperation>& operation);
  void wake();
  std::shared_ptr<Stage> stage(const Sequence& sequence, uint32_t start, uint32_t end, uint32_t window_start) const;
  void install(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Stage> stage, Completion<> completion);
  void export_range(const std::shared_ptr<Sequence>& sequence, uint32_t start, uint32_t end, uint32_t window_start,
                    Completion<std::shared_ptr<const kv::ExportView>> completion);
  void truncate(const std::shared_ptr<Sequence>& sequence, uint32_t position, Completion<> completion);
  /// Gives the sequence another reservation; after an error it has the one that it had.
  void reserve(const std::shared_ptr<Sequence>& sequence, uint32_t tokens, Completion<> completion);
  void fork(const std::shared_ptr<Sequence>& source, uint32_t reserve_tokens,
            Completion<std::shared_ptr<Sequence>> completion);
  void pack_window(const std::shared_ptr<Sequence>& sequence, Completion<> completion);
  void dispose(const std::shared_ptr<Sequence>& sequence, Completion<> completion);

  uint32_t vocabulary_size() const { return vocabulary_size_; }

 private:
  using Command = std::function<void(Scheduler&)>;

  void main(const Completion<>& completion);
  void serve(Context& context);
  void post(Command command);
  void submit(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Operation> operation);
  void immediate(const std::shared_ptr<Sequence>& sequence, ImmediateOperation::Work work, Completion<> completion,
                 bool frees = false);
  void release(const Sequence& sequence);
  /// Throws CONTEXT_FULL, with the numbers, when `tokens` do not fit beside `others` reserved ones.
  void require_cells(uint32_t tokens, uint64_t others) const;
  void finish_stopping();

  std::shared_ptr<const Model> model_;
  const EngineOptions options_;
  const kv::Geometry geometry_;
  const uint32_t vocabulary_size_;
  const CachePlan plan_;
  kv::StateForm form_;  ///< written before `start` completes, never after

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> inbox_;
  bool woken_ = false;
  bool inbox_closed_ = false;
  bool stopped_ = false;  ///< and the cache is freed
  std::vector<std::function<void()>> on_stopped_;
  std::set<llama_seq_id> free_ids_;
  uint64_t reserved_tokens_ = 0;
  Scheduler* scheduler_ = nullptr;  ///< engine thread only

  std::atomic<bool> stopping_{false};
  SchedulerCounters counters_;
  std::thread thread_;
};

}  // namespace muser
