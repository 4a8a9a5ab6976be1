#pragma once

#include <napi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "error.h"
#include "kv/geometry.h"
#include "llama.h"

namespace muser::bridge {

/// An Error with `code`, for ts/errors.ts to classify.
Napi::Error to_js(Napi::Env env, const EngineError& error);

/// Runs the body of a native function: every C++ exception becomes a JavaScript error with a code.
template <typename Body>
auto guard(Napi::Env env, Body body) {
  try {
    return body();
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw to_js(env, current_error());
  }
}

// Readers. `path` names the value in the INVALID_ARGUMENT error: "options.maxTokens".
uint32_t to_uint32(const Napi::Value& value, const char* path);
double to_double(const Napi::Value& value, const char* path);
bool to_bool(const Napi::Value& value, const char* path);
std::string to_string(const Napi::Value& value, const char* path);
Napi::Object to_object(const Napi::Value& value, const char* path);
/// Null becomes an empty reference.
Napi::FunctionReference to_callback(const Napi::Value& value, const char* path);
std::vector<llama_token> to_tokens(const Napi::Value& int32_array, const char* path);
std::vector<llama_token> to_token_list(const Napi::Value& array, const char* path);
std::vector<std::string> to_string_list(const Napi::Value& array, const char* path);
kv::Kind to_kind(const Napi::Value& value, const char* path);
kv::WireType to_wire_type(const Napi::Value& value, const char* path);

/// A view of bytes that stay where they are until the native call returns.
struct Bytes {
  uint8_t* data;
  size_t size;
};
Bytes to_bytes(const Napi::Value& uint8_array, const char* path);

// Writers.
Napi::Array numbers(Napi::Env env, const std::vector<llama_token>& values);
Napi::Value number_or_null(Napi::Env env, const std::optional<llama_token>& value);
Napi::Uint8Array bytes(Napi::Env env, const std::string& value);

/// {promise, cancel}: `cancel` must be safe to call at any time.
Napi::Object task(Napi::Env env, const Napi::Promise& promise, std::function<void()> cancel);

}  // namespace muser::bridge
