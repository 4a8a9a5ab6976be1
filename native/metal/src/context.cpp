#include "context.h"

#include <algorithm>

#include "backend.h"
#include "error.h"

namespace muser {

namespace {

constexpr uint32_t kCellPadding = 256;  // llama.cpp pads both caches to this

uint32_t padded(uint64_t cells) {
  return static_cast<uint32_t>((cells + kCellPadding - 1) / kCellPadding * kCellPadding);
}

[[noreturn]] void broken(const std::string& what) { throw EngineError(ErrorCode::EngineFailed, what); }

}  // namespace

CachePlan::CachePlan(const kv::Geometry& geometry, const EngineOptions& options)
    : geometry_(geometry),
      type_(options.kv_type),
      batch_tokens_(options.chunk_tokens + options.max_sequences),
      // llama.cpp lowers the batch to the context, and a chunk must stay one micro-batch.
      context_cells_(padded(std::max(options.context_tokens, batch_tokens_))),
      window_cells_(padded(std::min<uint64_t>(
          context_cells_, static_cast<uint64_t>(geometry.window) * (options.max_sequences + 1) + batch_tokens_))) {}

uint64_t CachePlan::bytes_for(uint64_t global_cells, uint64_t window_cells) const {
  const uint64_t elements = geometry_.row_elements();
  const uint64_t row_bytes = type_ == kv::CacheType::F16 ? elements * 2 : elements / 32 * 34;
  const uint64_t cells = geometry_.layers_of(kv::LayerKind::Global) * global_cells +
                         geometry_.layers_of(kv::LayerKind::Window) * window_cells;
  return cells * row_bytes * 2;  // K and V
}

uint64_t CachePlan::cache_bytes() const { return bytes_for(context_cells_, window_cells_); }

uint64_t CachePlan::sequence_bytes(uint32_t tokens) const {
  return bytes_for(tokens, std::min(tokens, geometry_.window));
}

Context::Context(std::shared_ptr<const Model> model, const EngineOptions& options, const std::atomic<bool>* abort)
    : model_(std::move(model)),
      options_(options),
      plan_(model_->info().cache.geometry, options),
      geometry_(model_->info().cache.geometry),
      spare_(static_cast<llama_seq_id>(options.max_sequences)),
      abort_(abort) {
  const uint64_t available = memory_for_cache_bytes(model_->on_gpu());
  if (available != 0 && plan_.cache_bytes() > available) {
    throw EngineError(ErrorCode::OutOfMemory, "the cache for " + std::to_string(plan_.context_cells()) +
                                                  " tokens needs " + std::to_string(plan_.cache_bytes()) +
                                                  " bytes, available are " + std::to_string(available) +
                                                  ": lower contextTokens or maxSequences");
  }
  rebuild();
}

void Context::rebuild() {
  context_.reset();
  llama_context_params parameters = llama_context_default_params();
  parameters.n_ctx = plan_.context_cells();
  parameters.n_batch = plan_.batch_tokens();
  parameters.n_ubatch = plan_.batch_tokens();
  parameters.n_seq_max = options_.max_sequences + 1;
  // Every sequence asks for one row of logits at most; llama.cpp wants room for all ids.
  parameters.n_outputs_max = options_.max_sequences + 1;
  parameters.n_threads = options_.threads;
  parameters.n_threads_batch = options_.threads;
  parameters.flash_attn_type =
      options_.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const ggml_type type = options_.kv_type == kv::CacheType::F16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
  parameters.type_k = type;
  parameters.type_v = type;
  parameters.kv_unified = true;
  parameters.swa_full = false;
  parameters.no_perf = true;
  parameters.abort_callback = [](void* flag) { return static_cast<const std::atomic<bool>*>(flag)->load(); };
  parameters.abort_callback_data = const_cast<std::atomic<bool>*>(abort_);
  LogCapture capture;
  context_.reset(llama_init_from_model(model_->llama(), parameters));
  if (!context_) {
    throw EngineError(ErrorCode::OutOfMemory, capture.first_error("llama.cpp could not make a context") + " (cache: " +
                                                  std::to_string(plan_.cache_bytes()) + " bytes)");
  }
  if (geometry_.known()) learn_form();
}

/// Writes a few rows with the spare id and reads how this build stores them.
void Context::learn_form() {
  constexpr uint32_t kTokens = 2;
  Batch batch(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) batch.add(0, i, spare_, false);
  decode(batch.get());
  const std::vector<uint8_t> state = state_of(spare_, LLAMA_STATE_SEQ_FLAGS_NONE);
  form_ = kv::learn_state_form(state.data(), state.size(), geometry_);
  clear(spare_);
}

void Context::decode(const llama_batch& batch) {
  LogCapture capture;
  const int32_t result = llama_decode(context_.get(), batch);
  if (result == 0) return;
  broken("llama_decode failed with code " + std::to_string(result) + ": " + capture.first_error("no reason given"));
}

const float* Context::logits(int32_t batch_index) const {
  const float* logits = llama_get_logits_ith(context_.get(), batch_index);
  if (logits == nullptr) broken("llama.cpp gave no logits");
  return logits;
}

std::vector<uint8_t> Context::state_of(llama_seq_id sequence, llama_state_seq_flags flags) {
  const size_t size = llama_state_seq_get_size_ext(context_.get(), sequence, flags);
  std::vector<uint8_t> state(size);
  const size_t written = llama_state_seq_get_data_ext(context_.get(), state.data(), size, sequence, flags);
  if (size == 0 || written != size) broken("a sequence's state could not be read");
  return state;
}

void Context::set_state(llama_seq_id sequence, const uint8_t* data, size_t size, llama_state_seq_flags flags) {
  LogCapture capture;
  const size_t read = llama_state_seq_set_data_ext(context_.get(), data, size, sequence, flags);
  if (read != size) {
    broken("llama.cpp took " + std::to_string(read) + " of " + std::to_string(size) +
           " bytes of a sequence's state: " + capture.first_error("no reason given"));
  }
}

void Context::install(kv::StageBuffer& stage, llama_seq_id sequence) {
  const auto state = stage.state(spare_);
  set_state(spare_, state.data(), state.size(), LLAMA_STATE_SEQ_FLAGS_NONE);
  llama_memory_seq_cp(memory(), spare_, sequence, -1, -1);
  clear(spare_);
}

/// Lends the spare id out; whatever happens, it is empty afterwards.
class Context::SpareRows {
 public:
  SpareRows(Context& context, llama_seq_id source, uint32_t start, uint32_t end) : context_(context) {
    llama_memory_seq_cp(context.memory(), source, context.spare_, static_cast<llama_pos>(start),
                        static_cast<llama_pos>(end));
  }
  ~SpareRows() { context_.clear(context_.spare_); }
  SpareRows(const SpareRows&) = delete;
  SpareRows& operator=(const SpareRows&) = delete;

 private:
  Context& context_;
};

std::vector<uint8_t> Context::range_state(llama_seq_id sequence, uint32_t start, uint32_t end) {
  const SpareRows rows(*this, sequence, start, end);
  return state_of(spare_, LLAMA_STATE_SEQ_FLAGS_NONE);
}

kv::TokenRange Context::window_rows_below(llama_seq_id sequence, uint32_t end) {
  const uint32_t start = end > geometry_.window ? end - geometry_.window : 0;
  const SpareRows rows(*this, sequence, start, end);
  return kv::window_rows_in(geometry_, form_, state_of(spare_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
}

void Context::fork(llama_seq_id source, llama_seq_id target) {
  const std::vector<uint8_t> window =
      geometry_.has_window() ? state_of(source, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) : std::vector<uint8_t>();
  llama_memory_seq_cp(memory(), source, target, -1, -1);
  if (window.empty()) return;
  set_state(target, window.data(), window.size(), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

void Context::pack_window(llama_seq_id sequence) {
  if (!geometry_.has_window()) return;
  const std::vector<uint8_t> window = state_of(sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
  set_state(sequence, window.data(), window.size(), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

void Context::remove_from(llama_seq_id sequence, uint32_t position) {
  if (!llama_memory_seq_rm(memory(), sequence, static_cast<llama_pos>(position), -1)) {
    broken("llama.cpp could not remove a sequence's rows");
  }
}

void Context::clear(llama_seq_id sequence) {
  // There is no context after a rebuild that failed, and then nothing to clear.
  if (context_) llama_memory_seq_rm(memory(), sequence, -1, -1);
}

Batch::Batch(uint32_t capacity)
    : capacity_(capacity), batch_(llama_batch_init(static_cast<int32_t>(capacity), 0, 1)) {}

Batch::~Batch() { llama_batch_free(batch_); }

int32_t Batch::add(llama_token token, uint32_t position, llama_seq_id sequence, bool logits) {
  const int32_t index = batch_.n_tokens;
  if (static_cast<uint32_t>(index) >= capacity_) broken("a batch is too small");
  batch_.token[index] = token;
  batch_.pos[index] = static_cast<llama_pos>(position);
  batch_.n_seq_id[index] = 1;
  batch_.seq_id[index][0] = sequence;
  batch_.logits[index] = logits ? 1 : 0;
  ++batch_.n_tokens;
  return index;
}

}  // namespace muser
