#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/export_view.h"
#include "kv/geometry.h"
#include "kv/stage_buffer.h"
#include "kv/state_form.h"
#include "llama.h"
#include "model.h"

namespace muser {

struct EngineOptions {
  uint32_t max_sequences = 1;
  uint32_t context_tokens = 0;
  uint32_t chunk_tokens = 0;
  bool flash_attention = false;
  kv::CacheType kv_type = kv::CacheType::F16;
  int32_t threads = 1;
};

/// Sizes that follow from model and options, before anything is allocated.
class CachePlan {
 public:
  CachePlan(const kv::Geometry& geometry, const EngineOptions& options);

  /// Tokens of one llama_decode call: a chunk and one decode step of every sequence are one micro-batch.
  uint32_t batch_tokens() const { return batch_tokens_; }
  uint32_t context_cells() const { return context_cells_; }
  /// 0 for a cache of another kind than `geometry` can describe.
  uint64_t cache_bytes() const;
  /// What a sequence of `tokens` tokens uses; 0 likewise.
  uint64_t sequence_bytes(uint32_t tokens) const;

 private:
  uint64_t bytes_for(uint64_t global_cells, uint64_t window_cells) const;

  kv::Geometry geometry_;
  kv::CacheType type_;
  uint32_t batch_tokens_;
  uint32_t context_cells_;
  uint32_t window_cells_;
};

/// llama.cpp's context with one spare sequence id beyond `max_sequences`, through which rows come and go. Used on the
/// engine thread only. A throw of ENGINE_FAILED out of a call means that the cache cannot be trusted any more: rebuild.
class Context {
 public:
  /// `abort` ends a running computation early when it becomes true; the context is good for nothing after that.
  Context(std::shared_ptr<const Model> model, const EngineOptions& options, const std::atomic<bool>* abort);

  /// An empty context with the same options. Throws ENGINE_FAILED or OUT_OF_MEMORY.
  void rebuild();

  bool aborted() const { return abort_->load(); }
  const kv::StateForm& form() const { return form_; }
  const kv::Geometry& geometry() const { return geometry_; }

  /// Evaluates one batch. Throws ENGINE_FAILED.
  void decode(const llama_batch& batch);
  const float* logits(int32_t batch_index) const;

  /// Puts a complete stage's rows into `sequence`, which must end where the stage starts.
  void install(kv::StageBuffer& stage, llama_seq_id sequence);
  /// The state of the rows from `start` to `end`.
  std::vector<uint8_t> range_state(llama_seq_id sequence, uint32_t start, uint32_t end);
  /// The unbroken run of window rows with the highest positions below `end`; may be empty.
  kv::TokenRange window_rows_below(llama_seq_id sequence, uint32_t end);
  /// `target` shares the global rows of `source` and gets window rows of its own.
  void fork(llama_seq_id source, llama_seq_id target);
  /// Stores the window rows of a sequence anew, side by side where cells are free.
  void pack_window(llama_seq_id sequence);
  /// Removes the rows from `position` on.
  void remove_from(llama_seq_id sequence, uint32_t position);
  void clear(llama_seq_id sequence);

 private:
  class SpareRows;
  struct Deleter {
    void operator()(llama_context* context) const { llama_free(context); }
  };

  llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  std::vector<uint8_t> state_of(llama_seq_id sequence, llama_state_seq_flags flags);
  void set_state(llama_seq_id sequence, const uint8_t* data, size_t size, llama_state_seq_flags flags);
  void learn_form();

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  CachePlan plan_;
  kv::Geometry geometry_;
  llama_seq_id spare_;
  const std::atomic<bool>* abort_;
  std::unique_ptr<llama_context, Deleter> context_;
  kv::StateForm form_;
};

/// A llama_batch with room for a fixed number of tokens.
class Batch {
 public:
  explicit Batch(uint32_t capacity);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  bool empty() const { return batch_.n_tokens == 0; }
  /// Index of the token in the batch.
  int32_t add(llama_token token, uint32_t position, llama_seq_id sequence, bool logits);
  const llama_batch& get() const { return batch_; }

 private:
  uint32_t capacity_;
  llama_batch batch_;
};

}  // namespace muser
