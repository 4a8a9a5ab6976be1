#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace muser::tools {

/// What was typed wrong; the message says what.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A command line of positional arguments and `--name value` options; a flag is an option without a value.
class Arguments {
 public:
  /// `names` and `flags` list what is allowed. Throws UsageError on anything else.
  Arguments(int count, char** values, const std::vector<std::string>& names,
            const std::vector<std::string>& flags = {});

  /// Exactly `count` positional arguments, or UsageError.
  const std::vector<std::string>& positional(size_t count) const;
  bool has(const std::string& name) const { return options_.count(name) > 0; }
  std::string text(const std::string& name, const std::string& otherwise) const;
  /// A whole number from `least` to `most`.
  uint32_t number(const std::string& name, uint32_t otherwise, uint32_t least, uint32_t most) const;

 private:
  std::vector<std::string> positional_;
  std::map<std::string, std::string> options_;
};

/// Runs a tool: prints `help` on --help, errors to stderr; returns the exit code (2 for a usage error).
int run_tool(int count, char** values, const char* help, int (*run)(int count, char** values));

}  // namespace muser::tools
