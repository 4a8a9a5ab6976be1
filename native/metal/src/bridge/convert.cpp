#include "convert.h"

#include <cmath>
#include <cstring>

namespace muser::bridge {

namespace {

[[noreturn]] void wrong(const char* path, const std::string& expected) {
  throw EngineError(ErrorCode::InvalidArgument, std::string(path) + " must be " + expected);
}

}  // namespace

Napi::Error to_js(Napi::Env env, const EngineError& error) {
  Napi::Error js = Napi::Error::New(env, error.what());
  js.Set("code", Napi::String::New(env, name_of(error.code())));
  return js;
}

double to_double(const Napi::Value& value, const char* path) {
  if (!value.IsNumber()) wrong(path, "a number");
  return value.As<Napi::Number>().DoubleValue();
}

uint32_t to_uint32(const Napi::Value& value, const char* path) {
  const double number = to_double(value, path);
  if (!(number >= 0 && number <= 4294967295.0) || number != std::floor(number)) wrong(path, "a whole number");
  return static_cast<uint32_t>(number);
}

bool to_bool(const Napi::Value& value, const char* path) {
  if (!value.IsBoolean()) wrong(path, "true or false");
  return value.As<Napi::Boolean>().Value();
}

std::string to_string(const Napi::Value& value, const char* path) {
  if (!value.IsString()) wrong(path, "a string");
  return value.As<Napi::String>().Utf8Value();
}

Napi::Object to_object(const Napi::Value& value, const char* path) {
  if (!value.IsObject()) wrong(path, "an object");
  return value.As<Napi::Object>();
}

Napi::FunctionReference to_callback(const Napi::Value& value, const char* path) {
  if (value.IsNull()) return {};
  if (!value.IsFunction()) wrong(path, "a function or null");
  return Napi::Persistent(value.As<Napi::Function>());
}

std::vector<llama_token> to_tokens(const Napi::Value& value, const char* path) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_int32_array) {
    wrong(path, "an Int32Array");
  }
  const auto array = value.As<Napi::Int32Array>();
  if (array.ElementLength() == 0) wrong(path, "at least one token");
  return {array.Data(), array.Data() + array.ElementLength()};
}

std::vector<llama_token> to_token_list(const Napi::Value& value, const char* path) {
  if (!value.IsArray()) wrong(path, "an array of token ids");
  const auto array = value.As<Napi::Array>();
  std::vector<llama_token> tokens;
  for (uint32_t i = 0; i < array.Length(); ++i) {
    tokens.push_back(static_cast<llama_token>(to_uint32(array.Get(i), path)));
  }
  return tokens;
}

std::vector<std::string> to_string_list(const Napi::Value& value, const char* path) {
  if (!value.IsArray()) wrong(path, "an array of strings");
  const auto array = value.As<Napi::Array>();
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < array.Length(); ++i) texts.push_back(to_string(array.Get(i), path));
  return texts;
}

kv::Kind to_kind(const Napi::Value& value, const char* path) {
  const std::string text = to_string(value, path);
  if (text == "k") return kv::Kind::K;
  if (text == "v") return kv::Kind::V;
  wrong(path, "k or v");
}

kv::WireType to_wire_type(const Napi::Value& value, const char* path) {
  const std::string text = to_string(value, path);
  if (text == "f16") return kv::WireType::F16;
  if (text == "bf16") return kv::WireType::BF16;
  wrong(path, "f16 or bf16");
}

Bytes to_bytes(const Napi::Value& value, const char* path) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) {
    wrong(path, "a Uint8Array");
  }
  auto array = value.As<Napi::Uint8Array>();
  return {array.Data(), array.ByteLength()};
}

Napi::Array numbers(Napi::Env env, const std::vector<llama_token>& values) {
  Napi::Array array = Napi::Array::New(env, values.size());
  for (size_t i = 0; i < values.size(); ++i) array.Set(static_cast<uint32_t>(i), Napi::Number::New(env, values[i]));
  return array;
}

Napi::Value number_or_null(Napi::Env env, const std::optional<llama_token>& value) {
  if (!value) return env.Null();
  return Napi::Number::New(env, *value);
}

Napi::Uint8Array bytes(Napi::Env env, const std::string& value) {
  Napi::Uint8Array array = Napi::Uint8Array::New(env, value.size());
  if (!value.empty()) std::memcpy(array.Data(), value.data(), value.size());
  return array;
}

Napi::Object task(Napi::Env env, const Napi::Promise& promise, std::function<void()> cancel) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("promise", promise);
  object.Set("cancel", Napi::Function::New(
                           env, [cancel = std::move(cancel)](const Napi::CallbackInfo&) { cancel(); }, "cancel"));
  return object;
}

}  // namespace muser::bridge
