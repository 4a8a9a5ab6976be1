#include "engine.h"

#include <algorithm>

#include "error.h"

namespace muser {

namespace {

const EngineError kClosed(ErrorCode::SequenceState, "the engine is closed");

[[noreturn]] void refuse(ErrorCode code, const std::string& reason) { throw EngineError(code, reason); }

void require(ErrorCode code, const std::string& reason) {
  if (!reason.empty()) refuse(code, reason);
}

void require_room(const Sequence& sequence, uint32_t end) {
  if (end <= sequence.reserved_tokens()) return;
  refuse(ErrorCode::ContextFull, "the rows end at token " + std::to_string(end) + ", reserved are " +
                                     std::to_string(sequence.reserved_tokens()));
}

/// llama.cpp has no way back to an earlier token of such a cache, and its state has no rows.
void require_rows(const kv::Geometry& geometry, const char* what) {
  if (geometry.known()) return;
  refuse(ErrorCode::ModelUnsupported, std::string(what) + ": the cache of this model is not made of rows");
}

}  // namespace

Stage::Stage(const kv::Geometry& geometry, const kv::StateForm& form, uint32_t start, uint32_t end,
             uint32_t window_start)
    : buffer_(std::make_unique<kv::StageBuffer>(geometry, form, start, end, window_start)),
      size_bytes_(buffer_->size()) {}

kv::StageBuffer& Stage::buffer() {
  if (!buffer_) refuse(ErrorCode::SequenceState, "the stage is installed or disposed");
  return *buffer_;
}

void Stage::put(uint32_t layer, kv::Kind kind, uint32_t start, uint32_t count, kv::WireType type, const uint8_t* bytes,
                size_t size) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) refuse(ErrorCode::SequenceState, "the stage is being installed");
  buffer().put(layer, kind, start, count, type, bytes, size);
}

bool Stage::complete() {
  const std::lock_guard lock(mutex_);
  return buffer().complete();
}

void Stage::dispose() {
  const std::lock_guard lock(mutex_);
  buffer_.reset();
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)),
      options_(options),
      geometry_(model_->info().cache.geometry),
      vocabulary_size_(model_->info().vocabulary_size),
      plan_(geometry_, options) {
  for (uint32_t id = 0; id < options.max_sequences; ++id) free_ids_.insert(static_cast<llama_seq_id>(id));
}

Engine::~Engine() { stop_and_wait(); }

void Engine::start(Completion<> completion) {
  thread_ = std::thread([this, completion = std::move(completion)]() mutable {
    main(completion);
    // It may hold the model, which whoever waits for the end expects to be free.
    completion = {};
    finish_stopping();
  });
}

void Engine::stop(std::function<void()> stopped) {
  stopping_.store(true);
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      on_stopped_.push_back(std::move(stopped));
      changed_.notify_all();
      return;
    }
  }
  stopped();
}

void Engine::stop_and_wait() {
  stop([] {});
  if (thread_.joinable()) thread_.join();
}

void Engine::main(const Completion<>& completion) {
  try {
    Context context(model_, options_, &stopping_);
    form_ = context.form();
    completion.done();
    serve(context);
  } catch (...) {
    completion.failed(stopping_.load() ? EngineError(ErrorCode::Cancelled, "the engine was closed") : current_error());
    stopping_.store(true);
  }
}

/// Runs commands and batches until the engine is told to stop.
void Engine::serve(Context& context) {
  Scheduler scheduler(context, *model_, options_, counters_);
  scheduler_ = &scheduler;
  EngineError end(ErrorCode::Cancelled, "the engine was closed");
  bool busy = false;
  while (!stopping_.load()) {
    std::vector<Command> commands;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return busy || woken_ || !inbox_.empty() || stopping_.load(); });
      woken_ = false;
      commands.swap(inbox_);
    }
    for (Command& command : commands) command(scheduler);
    try {
      busy = scheduler.step();
    } catch (...) {
      const std::string reason = current_error().what();
      end = EngineError(ErrorCode::EngineFailed, "the cache could not be built again: " + reason);
      stopping_.store(true);
    }
  }
  std::unique_lock lock(mutex_);
  // From here on nothing is left behind in the inbox.
  inbox_closed_ = true;
  std::vector<Command> commands;
  commands.swap(inbox_);
  lock.unlock();
  for (Command& command : commands) command(scheduler);
  scheduler.fail_all(end);
}

void Engine::finish_stopping() {
  std::vector<std::function<void()>> callbacks;
  model_.reset();
  {
    const std::lock_guard lock(mutex_);
    inbox_closed_ = true;
    stopped_ = true;
    callbacks.swap(on_stopped_);
  }
  for (const auto& callback : callbacks) callback();
}

void Engine::post(Command command) {
  const std::lock_guard lock(mutex_);
  if (inbox_closed_ || stopping_.load()) throw kClosed;
  inbox_.push_back(std::move(command));
  changed_.notify_all();
}

void Engine::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void Engine::submit(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Operation> operation) {
  post([sequence, operation = std::move(operation)](Scheduler& scheduler) { scheduler.submit(sequence, operation); });
}

std::shared_ptr<Sequence> Engine::open(uint32_t reserve_tokens) {
  const std::lock_guard lock(mutex_);
  if (inbox_closed_ || stopping_.load()) throw kClosed;
  if (free_ids_.empty()) {
    refuse(ErrorCode::ContextFull, "all " + std::to_string(options_.max_sequences) + " sequences are in use");
  }
  require_cells(reserve_tokens, reserved_tokens_);
  const llama_seq_id id = *free_ids_.begin();
  auto sequence = std::make_shared<Sequence>(id, reserve_tokens, geometry_);
  free_ids_.erase(id);
  reserved_tokens_ += reserve_tokens;
  return sequence;
}

void Engine::require_cells(uint32_t tokens, uint64_t others) const {
  const uint64_t free = options_.context_tokens - std::min<uint64_t>(others, options_.context_tokens);
  if (tokens <= free) return;
  refuse(ErrorCode::ContextFull, std::to_string(tokens) + " tokens wanted (" + std::to_string(sequence_bytes(tokens)) +
                                     " bytes of cache), " + std::to_string(free) + " of " +
                                     std::to_string(options_.context_tokens) + " are free");
}

void Engine::release(const Sequence& sequence) {
  const std::lock_guard lock(mutex_);
  free_ids_.insert(sequence.id());
  reserved_tokens_ -= sequence.reserved_tokens();
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats.sequences = options_.max_sequences - static_cast<uint32_t>(free_ids_.size());
    stats.reserved_tokens = reserved_tokens_;
  }
  stats.context_tokens = options_.context_tokens;
  stats.kv_bytes = plan_.cache_bytes();
  stats.decoded_tokens = counters_.decoded_tokens.load();
  stats.prefilled_tokens = counters_.prefilled_tokens.load();
  stats.queue_depth = counters_.queue_depth.load();
  return stats;
}

void Engine::run(const std::shared_ptr<Sequence>& sequence, const std::shared_ptr<RunOperation>& operation) {
  submit(sequence, operation);
}

void Engine::immediate(const std::shared_ptr<Sequence>& sequence, ImmediateOperation::Work work,
                       Completion<> completion, bool frees) {
  submit(sequence, std::make_shared<ImmediateOperation>(std::move(work), std::move(completion.done),
                                                        std::move(completion.failed), frees));
}

std::shared_ptr<Stage> Engine::stage(const Sequence& sequence, uint32_t start, uint32_t end,
                                     uint32_t window_start) const {
  require_rows(geometry_, "stage");
  require_room(sequence, end);
  return std::make_shared<Stage>(geometry_, form_, start, end, window_start);
}

void Engine::install(const std::shared_ptr<Sequence>& sequence, std::shared_ptr<Stage> stage, Completion<> completion) {
  immediate(
      sequence,
      [stage = std::move(stage)](Context& context, Sequence& target) {
        const std::lock_guard lock(stage->mutex_);
        kv::StageBuffer& buffer = stage->buffer();
        if (!buffer.complete()) refuse(ErrorCode::SequenceState, "the stage is not complete");
        require_room(target, buffer.end());
        require(ErrorCode::SequenceState,
                target.ledger_.can_install(buffer.start(), buffer.end(), buffer.window_start()));
        context.install(buffer, target.id());
        target.ledger_.after_install(buffer.start(), buffer.end(), buffer.window_start());
        target.publish_position();
        target.forget_logits();
        stage->buffer_.reset();
      },
      std::move(completion));
}

void Engine::export_range(const std::shared_ptr<Sequence>& sequence, uint32_t start, uint32_t end,
                          uint32_t window_start, Completion<std::shared_ptr<const kv::ExportView>> completion) {
  require_rows(geometry_, "export");
  auto view = std::make_shared<std::shared_ptr<const kv::ExportView>>();
  immediate(
      sequence,
      [start, end, window_start, view](Context& context, Sequence& source) {
        require(ErrorCode::RangeViolation, source.ledger_.can_export(start, end, window_start));
        *view = std::make_shared<const kv::ExportView>(context.geometry(), context.form(),
                                                       context.range_state(source.id(), start, end), start, end,
                                                       window_start);
      },
      {[view, done = std::move(completion.done)] { done(*view); }, std::move(completion.failed)});
}

void Engine::truncate(const std::shared_ptr<Sequence>& sequence, uint32_t position, Completion<> completion) {
  immediate(
      sequence,
      [position](Context& context, Sequence& target) {
        kv::SequenceLedger& ledger = target.ledger_;
        if (position > ledger.position()) {
          refuse(ErrorCode::RangeViolation, "the sequence ends at token " + std::to_string(ledger.position()) + ", before " +
                                       std::to_string(position));
        }
        if (position == ledger.position()) {
          // Rows beyond the last resume point may be there: they are kept, but nobody can go on from their end.
          if (position > 0) require(ErrorCode::SequenceState, ledger.can_decode(1));
          return;
        }
        if (position > 0) require_rows(context.geometry(), "truncate");
        std::optional<kv::TokenRange> seen;
        // The ledger counts only on rows that no other sequence can take; the cache may hold more.
        if (!ledger.can_truncate(position).empty()) seen = context.window_rows_below(target.id(), position);
        require(ErrorCode::SequenceState, ledger.can_truncate(position, seen));
        context.remove_from(target.id(), position);
        ledger.after_truncate(position, seen);
        target.publish_position();
        target.forget_logits();
      },
      std::move(completion));
}

void Engine::reserve(const std::shared_ptr<Sequence>& sequence, uint32_t tokens, Completion<> completion) {
  immediate(
      sequence,
      [this, tokens](Context&, Sequence& target) {
        if (tokens < target.position()) {
          refuse(ErrorCode::RangeViolation, "the sequence ends at token " + std::to_string(target.position()) +
                                                ", " + std::to_string(tokens) + " are too few");
        }
        const std::lock_guard lock(mutex_);
        const uint64_t others = reserved_tokens_ - target.reserved_tokens();
        require_cells(tokens, others);
        reserved_tokens_ = others + tokens;
        target.reserved_tokens_.store(tokens);
      },
      std::move(completion));
}

void Engine::fork(const std::shared_ptr<Sequence>& source, uint32_t reserve_tokens,
                  Completion<std::shared_ptr<Sequence>> completion) {
  require_rows(geometry_, "fork");
  auto copy = open(reserve_tokens);
  auto failed = [this, copy, inner = completion.failed](const EngineError& error) {
    scheduler_->forget(*copy);
    release(*copy);
    inner(error);
  };
  auto work = [this, copy](Context& context, Sequence& original) {
    require(ErrorCode::SequenceState, original.ledger_.can_fork());
    require_room(*copy, original.position());
    // Before the first row: when the copying fails, the copy's rows are lost with all others.
    scheduler_->adopt(copy);
    context.fork(original.id(), copy->id());
    copy->ledger_ = original.ledger_.forked();
    copy->publish_position();
  };
  try {
    immediate(source, std::move(work), {[copy, done = std::move(completion.done)] { done(copy); }, std::move(failed)});
  } catch (...) {
    release(*copy);
    throw;
  }
}

void Engine::pack_window(const std::shared_ptr<Sequence>& sequence, Completion<> completion) {
  immediate(
      sequence, [](Context& context, Sequence& target) { context.pack_window(target.id()); }, std::move(completion));
}

void Engine::dispose(const std::shared_ptr<Sequence>& sequence, Completion<> completion) {
  auto command = [this, sequence, completion](Scheduler& scheduler) {
    for (const auto& operation : sequence->operations_) operation->cancel();
    auto work = [this](Context& context, Sequence& target) {
      context.clear(target.id());
      target.ledger_.clear();
      target.publish_position();
      target.forget_logits();
      release(target);
    };
    auto done = [&scheduler, sequence, inner = completion.done] {
      scheduler.forget(*sequence);
      inner();
    };
    scheduler.submit(sequence, std::make_shared<ImmediateOperation>(work, done, completion.failed, true));
  };
  try {
    post(command);
  } catch (const EngineError&) {
    completion.done();  // closing freed everything
  }
}

}  // namespace muser
