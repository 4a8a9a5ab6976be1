#pragma once

#include <cstdint>
#include <string>

namespace muser {

/// What a GGUF file's header says, read before llama.cpp touches the file.
struct ModelFile {
  std::string path;  ///< canonical
  uint64_t bytes = 0;
  int64_t changed_ns = 0;
  std::string architecture;
  std::string name;

  /// Same key = same weights.
  std::string key() const;
};

/// Canonical path, size and change time. Throws MODEL_LOAD_FAILED when it is not a readable, non-empty file.
ModelFile find_model_file(const std::string& path);

/// Fills the rest in, and keeps away from llama.cpp what its assertions would end the process for. Throws
/// MODEL_LOAD_FAILED (no GGUF file, truncated, damaged header), MODEL_UNSUPPORTED (split files).
void read_model_header(ModelFile& file);

}  // namespace muser
