// Quantizes a GGUF with llama.cpp's own quantizer.
#include <ggml.h>
#include <gguf.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "llama_session.h"

namespace muser::tools {
namespace {

constexpr const char* kHelp =
    "usage: muser-quantize IN.gguf OUT.gguf TYPE [--threads N]\n"
    "\n"
    "TYPE: IQ2_XS, Q2_K, Q4_K_M, Q5_K_M, Q6_K, Q8_0 or F16. IN must hold F16, BF16 or F32 weights.\n"
    "IQ2_XS gets a constant importance matrix: every weight counts the same.\n";

struct NamedType {
  const char* name;
  llama_ftype type;
};

constexpr NamedType kTypes[] = {
    {"IQ2_XS", LLAMA_FTYPE_MOSTLY_IQ2_XS}, {"Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K},   {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M},
    {"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M}, {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},   {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
    {"F16", LLAMA_FTYPE_MOSTLY_F16},
};

llama_ftype type_named(const std::string& name) {
  for (const NamedType& type : kTypes) {
    if (name == type.name) return type.type;
  }
  throw UsageError("unknown type " + name);
}

/// The same importance for every weight of every tensor of a file.
class ConstantImportance {
 public:
  explicit ConstantImportance(const std::string& path) {
    ggml_context* tensors = nullptr;
    gguf_context* file = gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &tensors});
    if (file == nullptr) throw std::runtime_error("cannot read " + path);
    for (ggml_tensor* tensor = ggml_get_first_tensor(tensors); tensor != nullptr;
         tensor = ggml_get_next_tensor(tensors, tensor)) {
      add(ggml_get_name(tensor), static_cast<size_t>(tensor->ne[0] * tensor->ne[2]));
    }
    ggml_free(tensors);
    gguf_free(file);
    for (size_t i = 0; i < names_.size(); ++i) {
      entries_.push_back({names_[i].c_str(), values_[i].data(), values_[i].size()});
    }
    entries_.push_back({nullptr, nullptr, 0});
  }

  const llama_model_imatrix_data* entries() const { return entries_.data(); }

 private:
  void add(const std::string& name, size_t columns) {
    names_.push_back(name);
    values_.emplace_back(columns, 1.0f);
  }

  std::vector<std::string> names_;
  std::vector<std::vector<float>> values_;
  std::vector<llama_model_imatrix_data> entries_;
};

int run(int count, char** values) {
  const Arguments arguments(count, values, {"threads"});
  const auto& paths = arguments.positional(3);
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = type_named(paths[2]);
  params.nthread = static_cast<int32_t>(arguments.number("threads", 1, 1, 256));
  start_llama();
  std::unique_ptr<ConstantImportance> importance;
  if (params.ftype == LLAMA_FTYPE_MOSTLY_IQ2_XS) {
    importance = std::make_unique<ConstantImportance>(paths[0]);
    params.imatrix = importance->entries();
  }
  if (llama_model_quantize(paths[0].c_str(), paths[1].c_str(), &params) != 0) {
    throw std::runtime_error("llama.cpp could not quantize " + paths[0] + " to " + paths[2]);
  }
  return 0;
}

}  // namespace
}  // namespace muser::tools

int main(int count, char** values) {
  return muser::tools::run_tool(count, values, muser::tools::kHelp, muser::tools::run);
}
