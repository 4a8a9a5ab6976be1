#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace muser::tools {

namespace {

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

Arguments::Arguments(int count, char** values, const std::vector<std::string>& names,
                     const std::vector<std::string>& flags) {
  for (int i = 1; i < count; ++i) {
    const std::string item = values[i];
    if (item.rfind("--", 0) != 0) {
      positional_.push_back(item);
      continue;
    }
    const std::string name = item.substr(2);
    if (has(name)) throw UsageError(item + " was given twice");
    if (contains(flags, name)) {
      options_[name] = "";
    } else if (!contains(names, name)) {
      throw UsageError("unknown option " + item);
    } else if (i + 1 == count) {
      throw UsageError(item + " needs a value");
    } else {
      options_[name] = values[++i];
    }
  }
}

const std::vector<std::string>& Arguments::positional(size_t count) const {
  if (positional_.size() != count) {
    throw UsageError(std::to_string(count) + " arguments are needed, " + std::to_string(positional_.size()) +
                     " were given");
  }
  return positional_;
}

std::string Arguments::text(const std::string& name, const std::string& otherwise) const {
  const auto found = options_.find(name);
  return found == options_.end() ? otherwise : found->second;
}

uint32_t Arguments::number(const std::string& name, uint32_t otherwise, uint32_t least, uint32_t most) const {
  const auto found = options_.find(name);
  if (found == options_.end()) return otherwise;
  const std::string& digits = found->second;
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < least || value > most) {
    throw UsageError("--" + name + " takes a number from " + std::to_string(least) + " to " + std::to_string(most) +
                     ", not \"" + digits + "\"");
  }
  return value;
}

int run_tool(int count, char** values, const char* help, int (*run)(int count, char** values)) {
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(values[i], "--help") != 0) continue;
    std::fputs(help, stdout);
    return 0;
  }
  try {
    return run(count, values);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n\n%s", error.what(), help);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace muser::tools
