#include "convert.h"
#include "objects.h"

namespace muser::bridge {

namespace {

EngineOptions read_options(const Napi::Object& object) {
  EngineOptions options;
  options.max_sequences = to_uint32(object.Get("maxSequences"), "options.maxSequences");
  options.context_tokens = to_uint32(object.Get("contextTokens"), "options.contextTokens");
  options.chunk_tokens = to_uint32(object.Get("chunkTokens"), "options.chunkTokens");
  options.flash_attention = to_bool(object.Get("flashAttention"), "options.flashAttention");
  const std::string type = to_string(object.Get("kvType"), "options.kvType");
  options.kv_type = type == "q8_0" ? kv::CacheType::Q8_0 : kv::CacheType::F16;
  options.threads = static_cast<int32_t>(to_uint32(object.Get("threads"), "options.threads"));
  return options;
}

}  // namespace

Napi::Function EngineObject::define(Napi::Env env) {
  return DefineClass(env, "NativeEngine",
                     {
                         InstanceMethod<&EngineObject::open>("open"),
                         InstanceMethod<&EngineObject::stats>("stats"),
                         InstanceMethod<&EngineObject::sequence_bytes>("sequenceBytes"),
                         InstanceMethod<&EngineObject::close>("close"),
                     });
}

Napi::Value EngineObject::create(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    AddonData& data = AddonData::of(env);
    data.require_open();
    const auto model = unwrap<ModelObject>(info[0], data.model_class, "model").model();
    const auto engine = std::make_shared<Engine>(model, read_options(to_object(info[1], "options")));
    data.remember(engine);
    auto pending = std::make_unique<Pending>(env);
    const Napi::Promise promise = pending->deferred.Promise();
    const uint64_t id = data.mailbox->begin(env, std::move(pending));
    // The engine thread must not own the engine: it would have to wait for itself.
    const std::weak_ptr<Engine> weak = engine;
    data.starting.emplace(id, engine);
    auto completion = data.mailbox->completion<>(id, [weak, model, id](Napi::Env env) -> Napi::Value {
      AddonData& data = AddonData::of(env);
      const auto engine = weak.lock();
      data.starting.erase(id);
      return construct<Payload>(env, data.engine_class, Payload{engine, model});
    });
    auto failed = [mailbox = data.mailbox, inner = completion.failed, id](const EngineError& error) {
      inner(error);
      mailbox->post([id](Napi::Env env) { AddonData::of(env).starting.erase(id); });
    };
    engine->start({completion.done, failed});
    return promise;
  });
}

Napi::Value EngineObject::open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    auto sequence = payload_.engine->open(to_uint32(info[0], "reserveTokens"));
    return construct<SequenceObject::Payload>(env, AddonData::of(env).sequence_class,
                                              {payload_.engine, payload_.model, sequence});
  });
}

Napi::Value EngineObject::stats(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    const EngineStats stats = payload_.engine->stats();
    Napi::Object object = Napi::Object::New(env);
    object.Set("sequences", stats.sequences);
    object.Set("reservedTokens", static_cast<double>(stats.reserved_tokens));
    object.Set("contextTokens", stats.context_tokens);
    object.Set("kvBytes", static_cast<double>(stats.kv_bytes));
    object.Set("decodedTokens", static_cast<double>(stats.decoded_tokens));
    object.Set("prefilledTokens", static_cast<double>(stats.prefilled_tokens));
    object.Set("queueDepth", stats.queue_depth);
    return object;
  });
}

Napi::Value EngineObject::sequence_bytes(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    const uint64_t bytes = payload_.engine->sequence_bytes(to_uint32(info[0], "tokens"));
    return Napi::Number::New(info.Env(), static_cast<double>(bytes));
  });
}

Napi::Value EngineObject::close(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    payload_.model.reset();
    auto pending = std::make_unique<Pending>(env);
    pending->owner = Napi::Persistent(info.This().As<Napi::Object>());
    const Napi::Promise promise = pending->deferred.Promise();
    const auto mailbox = AddonData::of(env).mailbox;
    const uint64_t id = mailbox->begin(env, std::move(pending));
    payload_.engine->stop(mailbox->completion(id).done);
    return promise;
  });
}

}  // namespace muser::bridge
