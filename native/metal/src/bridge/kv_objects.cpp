#include "convert.h"
#include "objects.h"

namespace muser::bridge {

Napi::Function StageObject::define(Napi::Env env) {
  return DefineClass(env, "NativeKvStage",
                     {
                         InstanceMethod<&StageObject::size_bytes>("sizeBytes"),
                         InstanceMethod<&StageObject::put>("put"),
                         InstanceMethod<&StageObject::complete>("complete"),
                         InstanceMethod<&StageObject::dispose>("dispose"),
                     });
}

StageObject::StageObject(const Napi::CallbackInfo& info) : ObjectWrap(info), stage_(take_payload<Payload>(info)) {
  Napi::MemoryManagement::AdjustExternalMemory(info.Env(), static_cast<int64_t>(stage_->size_bytes()));
}

StageObject::~StageObject() {
  if (stage_) Napi::MemoryManagement::AdjustExternalMemory(Env(), -static_cast<int64_t>(stage_->size_bytes()));
}

Napi::Value StageObject::size_bytes(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(stage_->size_bytes()));
}

Napi::Value StageObject::put(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    const Bytes rows = to_bytes(info[5], "bytes");
    stage_->put(to_uint32(info[0], "layer"), to_kind(info[1], "kind"), to_uint32(info[2], "tokenStart"),
                to_uint32(info[3], "tokenCount"), to_wire_type(info[4], "wireType"), rows.data, rows.size);
    return info.Env().Undefined();
  });
}

Napi::Value StageObject::complete(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value { return Napi::Boolean::New(info.Env(), stage_->complete()); });
}

Napi::Value StageObject::dispose(const Napi::CallbackInfo& info) {
  stage_->dispose();
  return info.Env().Undefined();
}

Napi::Function ExportObject::define(Napi::Env env) {
  return DefineClass(env, "NativeKvExport",
                     {
                         InstanceMethod<&ExportObject::size_bytes>("sizeBytes"),
                         InstanceMethod<&ExportObject::read>("read"),
                         InstanceMethod<&ExportObject::dispose>("dispose"),
                     });
}

ExportObject::ExportObject(const Napi::CallbackInfo& info)
    : ObjectWrap(info), view_(take_payload<Payload>(info)), size_bytes_(view_->size()) {
  Napi::MemoryManagement::AdjustExternalMemory(info.Env(), static_cast<int64_t>(size_bytes_));
}

ExportObject::~ExportObject() { release(Env()); }

void ExportObject::release(Napi::Env env) {
  if (!view_) return;
  view_.reset();
  Napi::MemoryManagement::AdjustExternalMemory(env, -static_cast<int64_t>(size_bytes_));
}

Napi::Value ExportObject::size_bytes(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(size_bytes_));
}

Napi::Value ExportObject::read(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    if (!view_) throw EngineError(ErrorCode::SequenceState, "the export is disposed");
    const Bytes target = to_bytes(info[4], "target");
    const uint32_t offset = to_uint32(info[5], "targetOffset");
    if (offset > target.size) throw EngineError(ErrorCode::RangeViolation, "targetOffset is beyond the target's end");
    const size_t written =
        view_->read(to_uint32(info[0], "layer"), to_kind(info[1], "kind"), to_uint32(info[2], "tokenStart"),
                    to_uint32(info[3], "tokenCount"), target.data + offset, target.size - offset);
    return Napi::Number::New(info.Env(), static_cast<double>(written));
  });
}

Napi::Value ExportObject::dispose(const Napi::CallbackInfo& info) {
  release(info.Env());
  return info.Env().Undefined();
}

}  // namespace muser::bridge
