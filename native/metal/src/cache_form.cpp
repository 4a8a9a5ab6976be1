#include "cache_form.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backend.h"
#include "context.h"
#include "error.h"
#include "ggml.h"
#include "kv/export_view.h"
#include "kv/half.h"
#include "kv/state_form.h"
#include "rope_form.h"

namespace muser {

namespace {

constexpr uint32_t kCellPadding = 256;
/// The probe has as many cells in every layer.
constexpr uint32_t kMaxWindow = 8192;
/// Single tokens are put here. The far ones show scaled RoPE, which leaves fast pairs as they are.
constexpr uint32_t kPositions[] = {0, 1, 7, 61, 509, 4093};

/// One layer's part of the cache, as attention reads it.
struct SeenLayer {
  int64_t k_head_dim = 0;
  int64_t k_heads = 0;
  int64_t v_head_dim = 0;
  int64_t v_heads = 0;
  int64_t cells = 0;
};

/// Looks at the graph while it is evaluated. The names of the cache's tensors are the only thing here that is not in
/// llama.cpp's interface: when they change, no layer is found, and the model counts as one of another kind.
class GraphWatch {
 public:
  static bool on_node(ggml_tensor* node, bool ask, void* self) {
    if (ask) static_cast<GraphWatch*>(self)->look(*node);
    return !ask;
  }

  const std::map<long, SeenLayer>& layers() const { return layers_; }

 private:
  void look(const ggml_tensor& node) {
    // Without flash attention both products of attention read a permuted view of the cache.
    if (node.op != GGML_OP_MUL_MAT || node.src[0] == nullptr) return;
    const ggml_tensor& view = *node.src[0];
    if (view.view_src == nullptr) return;
    if (SeenLayer* layer = layer_of(*view.view_src, "cache_k_l")) {
      layer->k_head_dim = view.ne[0];
      layer->k_heads = view.ne[2];
      layer->cells = view.view_src->ne[1];
    } else if (SeenLayer* values = layer_of(*view.view_src, "cache_v_l")) {
      values->v_head_dim = view.ne[1];
      values->v_heads = view.ne[2];
    }
  }

  SeenLayer* layer_of(const ggml_tensor& cache, const char* prefix) {
    const size_t length = std::strlen(prefix);
    if (std::strncmp(cache.name, prefix, length) != 0) return nullptr;
    char* end = nullptr;
    const long number = std::strtol(cache.name + length, &end, 10);
    return *end == '\0' && end != cache.name + length ? &layers_[number] : nullptr;
  }

  std::map<long, SeenLayer> layers_;
};

/// A context of one sequence in which window layers have fewer cells than global ones.
class Probe {
 public:
  Probe(llama_model* model, int32_t threads, const std::atomic<bool>* cancelled)
      : window_(static_cast<uint32_t>(std::max(llama_model_n_swa(model), 0))), cancelled_(cancelled) {
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = cells();
    parameters.n_batch = 1;
    parameters.n_ubatch = 1;
    parameters.n_seq_max = 1;
    parameters.n_threads = threads;
    parameters.n_threads_batch = threads;
    parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    parameters.type_k = GGML_TYPE_F16;
    parameters.type_v = GGML_TYPE_F16;
    parameters.kv_unified = true;
    parameters.swa_full = false;
    parameters.no_perf = true;
    parameters.cb_eval = GraphWatch::on_node;
    parameters.cb_eval_user_data = &watch_;
    parameters.abort_callback = is_set;
    parameters.abort_callback_data = const_cast<std::atomic<bool>*>(cancelled);
    LogCapture capture;
    context_.reset(llama_init_from_model(model, parameters));
    if (!context_) failure_ = capture.first_error("llama.cpp could not make a context");
  }

  /// Why there is no context, mostly for want of memory; empty when there is one. Nothing else may be called then.
  const std::string& failure() const { return failure_; }

  uint32_t window() const { return window_; }
  /// More than the cache of a window has.
  uint32_t cells() const { return (window_ + kCellPadding) / kCellPadding * kCellPadding + kCellPadding; }
  bool keeps_tokens() const { return llama_get_memory(context_.get()) != nullptr; }
  const std::map<long, SeenLayer>& layers() const { return watch_.layers(); }

  /// The state of a sequence that has one token, at `position`.
  std::vector<uint8_t> state_at(uint32_t position) {
    check_not_cancelled();
    Batch batch(1);
    batch.add(0, position, 0, false);
    LogCapture capture;
    if (llama_decode(context_.get(), batch.get()) != 0) {
      check_not_cancelled();
      throw EngineError(ErrorCode::EngineFailed, capture.first_error("llama.cpp could not evaluate a token"));
    }
    std::vector<uint8_t> state(llama_state_seq_get_size_ext(context_.get(), 0, LLAMA_STATE_SEQ_FLAGS_NONE));
    const size_t written =
        llama_state_seq_get_data_ext(context_.get(), state.data(), state.size(), 0, LLAMA_STATE_SEQ_FLAGS_NONE);
    if (written != state.size()) {
      throw EngineError(ErrorCode::EngineFailed, "llama.cpp wrote " + std::to_string(written) + " bytes of a state of " +
                                                     std::to_string(state.size()));
    }
    llama_memory_seq_rm(llama_get_memory(context_.get()), 0, -1, -1);
    return state;
  }

 private:
  struct Deleter {
    void operator()(llama_context* context) const { llama_free(context); }
  };

  static bool is_set(void* flag) { return flag != nullptr && static_cast<const std::atomic<bool>*>(flag)->load(); }

  void check_not_cancelled() const {
    if (cancelled_ != nullptr && cancelled_->load()) throw EngineError(ErrorCode::Cancelled, "loading was cancelled");
  }

  const uint32_t window_;
  const std::atomic<bool>* cancelled_;
  GraphWatch watch_;
  std::string failure_;
  std::unique_ptr<llama_context, Deleter> context_;
};

/// Says why in `why` when the cache is none of K and V of every layer.
std::optional<kv::Geometry> geometry_of(const Probe& probe, llama_model* model, std::string& why) {
  const auto& layers = probe.layers();
  const auto count = static_cast<size_t>(llama_model_n_layer(model));
  if (layers.size() != count || layers.rbegin()->first != static_cast<long>(count) - 1) {
    why = "llama.cpp keeps K and V of " + std::to_string(layers.size()) + " of " + std::to_string(count) + " layers";
    return std::nullopt;
  }
  const SeenLayer& first = layers.at(0);
  kv::Geometry geometry;
  for (const auto& [number, layer] : layers) {
    if (layer.k_head_dim != layer.v_head_dim || layer.k_heads != layer.v_heads) {
      why = "rows of K and V differ: " + std::to_string(layer.k_heads) + " x " + std::to_string(layer.k_head_dim) +
            " and " + std::to_string(layer.v_heads) + " x " + std::to_string(layer.v_head_dim);
      return std::nullopt;
    }
    if (layer.k_head_dim != first.k_head_dim || layer.k_heads != first.k_heads) {
      why = "layers 0 and " + std::to_string(number) + " have other KV heads";
      return std::nullopt;
    }
    const bool window = layer.cells < probe.cells();
    geometry.layers.push_back(window ? kv::LayerKind::Window : kv::LayerKind::Global);
  }
  geometry.kv_heads = static_cast<uint32_t>(first.k_heads);
  geometry.head_dim = static_cast<uint32_t>(first.k_head_dim);
  geometry.window = geometry.has_window() ? probe.window() : 0;
  geometry.k_interleaved = llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NORM;
  geometry.check();
  return geometry;
}

/// The metadata's number under the architecture's own prefix.
std::optional<double> number_of(llama_model* model, const char* name) {
  char architecture[128] = {};
  char value[64] = {};
  if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture) < 0) {
    return std::nullopt;
  }
  const std::string key = std::string(architecture) + '.' + name;
  if (llama_model_meta_val_str(model, key.c_str(), value, sizeof value) < 0) return std::nullopt;
  return std::strtof(value, nullptr);
}

/// K of every layer at every position; false when V depends on the position too.
class Rows {
 public:
  explicit Rows(const kv::Geometry& geometry) : geometry_(geometry), keys_(geometry.layers.size()) {}

  void add(uint32_t position, const std::vector<uint8_t>& state, const kv::StateForm& form) {
    const kv::ExportView view(geometry_, form, state, position, position + 1, position);
    for (uint32_t layer = 0; layer < keys_.size(); ++layer) {
      keys_[layer].push_back({position, row(view, layer, kv::Kind::K, position)});
    }
    std::vector<float> values = row(view, static_cast<uint32_t>(keys_.size()) - 1, kv::Kind::V, position);
    values_.push_back({position, std::move(values)});
  }

  /// What is handed on without a position must not depend on one: learned positions reach every K and V.
  bool positions_reach_values() const { return turn_of(values_, geometry_.head_dim, 1.0) != Turn::None; }
  Turn turn(uint32_t layer, double base) const { return turn_of(keys_[layer], geometry_.head_dim, base); }

 private:
  std::vector<float> row(const kv::ExportView& view, uint32_t layer, kv::Kind kind, uint32_t position) const {
    std::vector<uint8_t> wire(geometry_.wire_row_bytes());
    view.read(layer, kind, position, 1, wire.data(), wire.size());
    std::vector<float> elements(geometry_.row_elements());
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = kv::half_to_float(static_cast<uint16_t>(wire[2 * i] | wire[2 * i + 1] << 8));
    }
    return elements;
  }

  const kv::Geometry& geometry_;
  std::vector<std::vector<KeyAt>> keys_;
  std::vector<KeyAt> values_;
};

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Finds RoPE's base and the layers that have it; says why in `local_only` when no hand-off can tell them.
void find_rope(const Rows& rows, llama_model* model, CacheForm& form) {
  const double base = number_of(model, "rope.freq_base").value_or(10000);
  const double other = number_of(model, "rope.freq_base_swa").value_or(base);
  form.rope_base = static_cast<float>(base);
  size_t turning[2] = {};  // global, window
  for (uint32_t layer = 0; layer < form.geometry.layers.size(); ++layer) {
    const bool window = form.geometry.layers[layer] == kv::LayerKind::Window;
    const Turn turn = rows.turn(layer, base);
    if (turn == Turn::Rope) ++turning[window];
    if (turn != Turn::Other) continue;
    form.local_only = rows.turn(layer, other) == Turn::Rope
                          ? "layers have different RoPE bases (" + number_text(base) + " and " + number_text(other) + ")"
                          : "K of layer " + std::to_string(layer) + " does not turn as plain RoPE of base " +
                                number_text(base) + " over whole heads: it is scaled, partial or of another form";
    return;
  }
  const size_t windows = form.geometry.layers_of(kv::LayerKind::Window);
  const size_t globals = form.geometry.layers.size() - windows;
  if (turning[0] == globals && turning[1] == windows) return;
  form.rope_on_window_layers_only = turning[0] == 0 && turning[1] == windows && windows > 0;
  if (form.rope_on_window_layers_only) return;
  form.local_only = turning[0] + turning[1] == 0 ? "no layer uses RoPE"
                                                 : "layers with and without RoPE are not those with and without a window";
}

void refuse_other_kinds(const llama_model* model) {
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
    throw EngineError(ErrorCode::ModelUnsupported, "it has an encoder, which no prompt is");
  }
  if (llama_model_is_diffusion(model)) {
    throw EngineError(ErrorCode::ModelUnsupported, "it makes text by diffusion, not token after token");
  }
}

}  // namespace

CacheForm find_cache_form(llama_model* model, int32_t threads, const std::atomic<bool>* cancelled) {
  refuse_other_kinds(model);
  CacheForm form;
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
    form.local_only = "some layers keep a recurrent state instead of K and V";
    return form;
  }
  if (llama_model_n_swa(model) > static_cast<int32_t>(kMaxWindow)) {
    form.local_only = "its window has " + std::to_string(llama_model_n_swa(model)) + " tokens, more than " +
                      std::to_string(kMaxWindow);
    return form;
  }
  Probe probe(model, threads, cancelled);
  // The model's own context may be smaller, so the model can decode all the same.
  if (!probe.failure().empty()) {
    form.local_only = "its cache could not be looked at, which takes " + std::to_string(probe.cells()) +
                      " tokens in every layer: " + probe.failure();
    return form;
  }
  if (!probe.keeps_tokens()) throw EngineError(ErrorCode::ModelUnsupported, "it keeps no KV cache: no text generator");
  try {
    std::vector<uint8_t> state = probe.state_at(0);
    const auto geometry = geometry_of(probe, model, form.local_only);
    if (!geometry) return form;
    const kv::StateForm state_form = kv::learn_state_form(state.data(), state.size(), *geometry);
    Rows rows(*geometry);
    const auto trained = static_cast<uint32_t>(llama_model_n_ctx_train(model));
    for (const uint32_t position : kPositions) {
      if (position > 1 && position >= trained) break;
      if (position > 0) state = probe.state_at(position);
      rows.add(position, state, state_form);
    }
    form.geometry = *geometry;
    find_rope(rows, model, form);
    const llama_rope_type type = llama_model_rope_type(model);
    if (type != LLAMA_ROPE_TYPE_NORM && type != LLAMA_ROPE_TYPE_NEOX) {
      form.local_only = type == LLAMA_ROPE_TYPE_NONE ? "it has no RoPE" : "its RoPE has sections (M-RoPE)";
    }
    if (rows.positions_reach_values()) form.local_only = "positions are part of its embeddings";
  } catch (const kv::KvError& error) {
    form = {};
    form.local_only = error.what();
  }
  return form;
}

}  // namespace muser
