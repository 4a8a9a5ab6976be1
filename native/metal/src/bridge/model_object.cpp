#include "convert.h"
#include "objects.h"

namespace muser::bridge {

namespace {

Napi::Object geometry_of(Napi::Env env, const ModelInfo& info) {
  Napi::Array layers = Napi::Array::New(env, info.geometry.layers.size());
  for (uint32_t i = 0; i < info.geometry.layers.size(); ++i) {
    layers.Set(i, info.geometry.layers[i] == kv::LayerKind::Window ? "window" : "global");
  }
  Napi::Object geometry = Napi::Object::New(env);
  geometry.Set("layers", layers);
  geometry.Set("kvHeads", info.geometry.kv_heads);
  geometry.Set("headDimension", info.geometry.head_dim);
  geometry.Set("windowTokens", info.geometry.window);
  geometry.Set("ropeBase", info.rope_base);
  geometry.Set("ropeLayers", info.rope_on_window_layers_only ? "window" : "all");
  return geometry;
}

Napi::Array metadata_of(Napi::Env env, const ModelInfo& info) {
  Napi::Array list = Napi::Array::New(env, info.metadata.size());
  for (uint32_t i = 0; i < info.metadata.size(); ++i) {
    Napi::Array pair = Napi::Array::New(env, 2);
    pair.Set(0U, info.metadata[i].first);
    pair.Set(1U, info.metadata[i].second);
    list.Set(i, pair);
  }
  return list;
}

}  // namespace

Napi::Function ModelObject::define(Napi::Env env) {
  return DefineClass(env, "NativeModel",
                     {
                         InstanceMethod<&ModelObject::info>("info"),
                         InstanceMethod<&ModelObject::vocabulary_bytes>("vocabularyBytes"),
                         InstanceMethod<&ModelObject::tokenize>("tokenize"),
                         InstanceMethod<&ModelObject::piece_bytes>("pieceBytes"),
                         InstanceMethod<&ModelObject::is_end_of_generation>("isEndOfGeneration"),
                         InstanceMethod<&ModelObject::close>("close"),
                     });
}

const std::shared_ptr<const Model>& ModelObject::model() const {
  if (!model_) throw EngineError(ErrorCode::InvalidArgument, "the model is closed");
  return model_;
}

Napi::Value ModelObject::load(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    AddonData& data = AddonData::of(env);
    data.require_open();
    const Napi::Object options = to_object(info[0], "options");
    LoadRequest request;
    request.path = to_string(options.Get("path"), "options.path");
    if (!options.Get("gpuLayers").IsNull()) {
      request.gpu_layers = static_cast<int32_t>(to_uint32(options.Get("gpuLayers"), "options.gpuLayers"));
    }
    auto pending = std::make_unique<Pending>(env);
    pending->on_progress = to_callback(info[1], "onProgress");
    const Napi::Promise promise = pending->deferred.Promise();
    const auto mailbox = data.mailbox;
    const uint64_t id = mailbox->begin(env, std::move(pending));
    const auto news = std::make_shared<News>(mailbox, id);
    request.on_progress = [news](float fraction) { news->progress(fraction); };
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    request.cancelled = cancelled.get();

    const auto entry = data.loads.insert(data.loads.end(), LoadThread{cancelled, {}});
    entry->thread = std::thread([mailbox, id, request, cancelled, entry] {
      std::shared_ptr<const Model> model;
      std::optional<EngineError> failure;
      try {
        model = load_model(request);
      } catch (...) {
        failure = current_error();
      }
      mailbox->post([entry](Napi::Env env) {
        entry->thread.join();
        AddonData::of(env).loads.erase(entry);
      });
      if (failure) {
        mailbox->reject(id, *failure);
      } else {
        mailbox->resolve(id, [model](Napi::Env env) {
          return construct<Payload>(env, AddonData::of(env).model_class, model);
        });
      }
    });
    return task(env, promise, [cancelled] { cancelled->store(true); });
  });
}

Napi::Value ModelObject::info(const Napi::CallbackInfo& call) {
  const Napi::Env env = call.Env();
  return guard(env, [&]() -> Napi::Value {
    const ModelInfo& info = model()->info();
    Napi::Object object = Napi::Object::New(env);
    object.Set("path", info.path);
    object.Set("name", info.name);
    object.Set("architecture", info.architecture);
    object.Set("description", info.description);
    object.Set("fileBytes", static_cast<double>(info.file_bytes));
    object.Set("parameters", static_cast<double>(info.parameters));
    object.Set("trainedContextTokens", info.trained_context_tokens);
    object.Set("vocabularySize", info.vocabulary_size);
    object.Set("geometry", geometry_of(env, info));
    object.Set("kPermuted", info.geometry.k_interleaved);
    object.Set("chatTemplate", info.chat_template ? Napi::String::New(env, *info.chat_template).As<Napi::Value>()
                                                  : env.Null());
    object.Set("bosToken", number_or_null(env, info.bos_token));
    object.Set("eosToken", number_or_null(env, info.eos_token));
    object.Set("eotToken", number_or_null(env, info.eot_token));
    object.Set("bosText", info.bos_text);
    object.Set("addBos", info.add_bos);
    object.Set("metadata", metadata_of(env, info));
    return object;
  });
}

Napi::Value ModelObject::vocabulary_bytes(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    std::string all;
    for (uint32_t id = 0; id < model()->info().vocabulary_size; ++id) {
      const std::string piece = model()->piece(static_cast<llama_token>(id), true);
      const auto length = static_cast<uint32_t>(piece.size());
      for (int shift = 0; shift < 32; shift += 8) all.push_back(static_cast<char>(length >> shift & 0xFF));
      all += piece;
    }
    return bytes(env, all);
  });
}

Napi::Value ModelObject::tokenize(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    const auto tokens = model()->tokenize(to_string(info[0], "text"), to_bool(info[1], "special"));
    Napi::Int32Array array = Napi::Int32Array::New(env, tokens.size());
    std::copy(tokens.begin(), tokens.end(), array.Data());
    return array;
  });
}

Napi::Value ModelObject::piece_bytes(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    return bytes(info.Env(), model()->piece(static_cast<llama_token>(to_uint32(info[0], "token")), true));
  });
}

Napi::Value ModelObject::is_end_of_generation(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    const auto token = static_cast<llama_token>(to_uint32(info[0], "token"));
    return Napi::Boolean::New(info.Env(), model()->is_end_of_generation(token));
  });
}

Napi::Value ModelObject::close(const Napi::CallbackInfo& info) {
  model_.reset();
  return info.Env().Undefined();
}

}  // namespace muser::bridge
