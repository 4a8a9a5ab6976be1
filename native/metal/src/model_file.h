#pragma once

#include <cstdint>
#include <string>

#include "kv/geometry.h"

namespace muser {

/// What a GGUF file's header says, read before llama.cpp touches the file.
struct ModelFile {
  std::string path;  ///< canonical
  uint64_t bytes = 0;
  int64_t changed_ns = 0;
  std::string architecture;
  std::string name;
  kv::Geometry geometry;  ///< `k_interleaved` is not known from the file
  float rope_base = 0;
  bool rope_on_window_layers_only = false;

  /// Same key = same weights.
  std::string key() const;
};

/// Canonical path, size and change time. Throws MODEL_LOAD_FAILED when it is not a readable, non-empty file.
ModelFile find_model_file(const std::string& path);

/// Fills the rest in. Throws MODEL_LOAD_FAILED (no GGUF file, truncated, damaged header), MODEL_UNSUPPORTED
/// (another architecture, split files, a KV geometry that cannot be handed off).
void read_model_header(ModelFile& file);

}  // namespace muser
