// Measures how fast rows in wire form get into a llama.cpp cache, against a memcpy of the same bytes.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "convert.h"
#include "export_view.h"
#include "llama_session.h"
#include "stage_buffer.h"
#include "state_form.h"

namespace muser::tools {
namespace {

using kv::ExportView;
using kv::Geometry;
using kv::Kind;
using kv::LayerKind;
using kv::StageBuffer;
using kv::StateForm;
using kv::WireType;

constexpr const char* kHelp =
    "usage: muser-kv-speed MODEL.gguf [options]\n"
    "\n"
    "MODEL is a muse-glimmer model (window layers with every fourth layer global), such as muser-make-kv-shape's.\n"
    "  --chunk N      tokens of the chunk (512)\n"
    "  --rounds N     rounds, of which the median counts (9)\n"
    "  --type T       f16 or bf16 on the wire (bf16)\n"
    "  --cache T      f16 or q8_0 (f16)\n"
    "  --no-flash     without flash attention: V is transposed\n"
    "  --json         one line of JSON\n";

constexpr uint32_t kGlobalEvery = 4;
constexpr size_t kPartBytes = size_t{1} << 20;  ///< What a message carries at most.

struct Medians {
  double copy;
  double convert;
  double install;
  double read;
};

std::string metadata(const llama_model* model, const std::string& key) {
  char text[256];
  if (llama_model_meta_val_str(model, key.c_str(), text, sizeof(text)) < 0) {
    throw std::runtime_error("the model has no " + key);
  }
  return text;
}

Geometry geometry_of(const llama_model* model) {
  if (metadata(model, "general.architecture") != "muse-glimmer") {
    throw std::runtime_error("only muse-glimmer models can be measured");
  }
  Geometry geometry;
  geometry.kv_heads = static_cast<uint32_t>(llama_model_n_head_kv(model));
  geometry.head_dim = static_cast<uint32_t>(std::stoul(metadata(model, "muse-glimmer.attention.key_length")));
  geometry.window = static_cast<uint32_t>(llama_model_n_swa(model));
  geometry.k_interleaved = llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NORM;
  for (int32_t layer = 0; layer < llama_model_n_layer(model); ++layer) {
    const bool is_global = layer % kGlobalEvery == kGlobalEvery - 1;
    geometry.layers.push_back(is_global ? LayerKind::Global : LayerKind::Window);
  }
  return geometry;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& work) {
  const double start = seconds_now();
  work();
  return seconds_now() - start;
}

kv::StateMemory state_of(llama_context* context, llama_seq_id sequence) {
  kv::StateMemory state(llama_state_seq_get_size_ext(context, sequence, 0));
  if (llama_state_seq_get_data_ext(context, state.data(), state.size(), sequence, 0) != state.size()) {
    throw std::runtime_error("cannot get a sequence state");
  }
  return state;
}

StateForm probe(llama_context* context, const Geometry& geometry) {
  Batch batch(2);
  batch.add(1, 0, 0, false);
  batch.add(2, 1, 0, false);
  batch.run(context);
  const auto state = state_of(context, 0);
  llama_memory_clear(llama_get_memory(context), true);
  return kv::learn_state_form(state.data(), state.size(), geometry);
}

/// Calls `visit` for each layer's K and V, in parts of at most a message.
template <typename Visit>
void for_each_part(const Geometry& geometry, uint32_t chunk, uint32_t window_start, Visit visit) {
  const auto rows = static_cast<uint32_t>(kPartBytes / geometry.wire_row_bytes());
  for (uint32_t layer = 0; layer < geometry.layers.size(); ++layer) {
    const uint32_t first = geometry.layers[layer] == LayerKind::Window ? window_start : 0;
    for (const Kind kind : {Kind::K, Kind::V}) {
      for (uint32_t start = first; start < chunk; start += rows) {
        visit(layer, kind, start, std::min(rows, chunk - start));
      }
    }
  }
}

class Measurement {
 public:
  Measurement(llama_context* context, const Geometry& geometry, uint32_t chunk, WireType type)
      : context_(context), geometry_(geometry), form_(probe(context, geometry)), chunk_(chunk), type_(type) {
    window_start_ = chunk > geometry.window ? chunk - geometry.window : 0;
    size_t rows = 0;
    for_each_part(geometry, chunk, window_start_, [&](uint32_t, Kind, uint32_t, uint32_t count) { rows += count; });
    wire_.resize(rows * geometry.wire_row_bytes());
    // Values around one: 0x3f80 is 1 in bf16, 0x3c00 is 1 in f16.
    auto* values = reinterpret_cast<uint16_t*>(wire_.data());
    const uint16_t one = type == WireType::BF16 ? 0x3f80 : 0x3c00;
    for (size_t i = 0; i < wire_.size() / 2; ++i) values[i] = static_cast<uint16_t>(one + i * 37 % 64);
  }

  size_t bytes() const { return wire_.size(); }

  Medians run(uint32_t rounds) {
    std::vector<double> copy;
    std::vector<double> convert;
    std::vector<double> install;
    std::vector<double> read;
    std::vector<uint8_t> out(wire_.size(), 1);
    for (uint32_t round = 0; round <= rounds; ++round) {
      const double copied = seconds_of([&] { std::memcpy(out.data(), wire_.data(), wire_.size()); });
      StageBuffer stage(geometry_, form_, 0, chunk_, window_start_);
      const double converted = seconds_of([&] { fill(stage); });
      const double installed = seconds_of([&] { set(stage); });
      const double exported = seconds_of([&] { read_all(out); });
      llama_memory_clear(llama_get_memory(context_), false);
      if (round == 0) continue;  // the first touch of the memory
      copy.push_back(copied);
      convert.push_back(converted);
      install.push_back(installed);
      read.push_back(exported);
    }
    return {median(copy), median(convert), median(install), median(read)};
  }

 private:
  void fill(StageBuffer& stage) {
    const uint8_t* next = wire_.data();
    for_each_part(geometry_, chunk_, window_start_, [&](uint32_t layer, Kind kind, uint32_t start, uint32_t count) {
      const size_t size = count * geometry_.wire_row_bytes();
      stage.put(layer, kind, start, count, type_, next, size);
      next += size;
    });
  }

  void set(StageBuffer& stage) {
    const auto state = stage.state(1);
    if (llama_state_seq_set_data_ext(context_, state.data(), state.size(), 1, 0) != state.size()) {
      throw std::runtime_error("llama.cpp refused the state");
    }
    const llama_memory_t memory = llama_get_memory(context_);
    llama_memory_seq_cp(memory, 1, 0, -1, -1);
    llama_memory_seq_rm(memory, 1, -1, -1);
  }

  void read_all(std::vector<uint8_t>& out) {
    const ExportView view(geometry_, form_, state_of(context_, 0), 0, chunk_, window_start_);
    uint8_t* next = out.data();
    for_each_part(geometry_, chunk_, window_start_, [&](uint32_t layer, Kind kind, uint32_t start, uint32_t count) {
      next += view.read(layer, kind, start, count, next, static_cast<size_t>(out.data() + out.size() - next));
    });
  }

  llama_context* context_;
  const Geometry& geometry_;
  StateForm form_;
  uint32_t chunk_;
  WireType type_;
  uint32_t window_start_ = 0;
  std::vector<uint8_t> wire_;
};

bool one_of(const Arguments& arguments, const std::string& option, const std::string& first,
            const std::string& second) {
  const std::string value = arguments.text(option, first);
  if (value != first && value != second) throw UsageError("--" + option + " takes " + first + " or " + second);
  return value == second;
}

int run(int count, char** values) {
  const Arguments arguments(count, values, {"chunk", "rounds", "type", "cache"}, {"no-flash", "json"});
  const std::string path = arguments.positional(1)[0];
  const uint32_t chunk = arguments.number("chunk", 512, 1, 1u << 16);
  const uint32_t rounds = arguments.number("rounds", 9, 1, 1000);
  const WireType type = one_of(arguments, "type", "bf16", "f16") ? WireType::F16 : WireType::BF16;
  const bool quantized = one_of(arguments, "cache", "f16", "q8_0");

  start_llama();
  const ModelPointer model = load_model(path);
  const Geometry geometry = geometry_of(model.get());
  llama_context_params params = context_params(chunk + 512, 2, 1, !arguments.has("no-flash"));
  params.type_k = params.type_v = quantized ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  const ContextPointer context = make_context(model.get(), params);

  Measurement measurement(context.get(), geometry, chunk, type);
  const Medians time = measurement.run(rounds);
  const auto rate = [&](double seconds) { return static_cast<double>(measurement.bytes()) / seconds / 1e9; };
  const double whole = time.convert + time.install;
  const char* form = arguments.has("json")
                         ? "{\"kernels\":\"%s\",\"bytes\":%zu,\"copyGBs\":%.2f,\"convertGBs\":%.2f,\"installGBs\":%.2f,"
                           "\"convertAndInstallGBs\":%.2f,\"ofCopy\":%.3f,\"exportGBs\":%.2f}\n"
                         : "%s kernels, %zu bytes: memcpy %.2f GB/s, convert %.2f, install %.2f, both %.2f GB/s "
                           "(%.3f of memcpy), export %.2f GB/s\n";
  std::printf(form, kv::kernels().name, measurement.bytes(), rate(time.copy), rate(time.convert), rate(time.install),
              rate(whole), time.copy / whole, rate(time.read));
  return 0;
}

}  // namespace
}  // namespace muser::tools

int main(int count, char** values) {
  return muser::tools::run_tool(count, values, muser::tools::kHelp, muser::tools::run);
}
