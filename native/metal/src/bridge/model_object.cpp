#include "convert.h"
#include "objects.h"

namespace muser::bridge {

namespace {

Napi::Object geometry_of(Napi::Env env, const ModelInfo& info) {
  const kv::Geometry& cache = info.cache.geometry;
  Napi::Array layers = Napi::Array::New(env, cache.layers.size());
  for (uint32_t i = 0; i < cache.layers.size(); ++i) {
    layers.Set(i, cache.layers[i] == kv::LayerKind::Window ? "window" : "global");
  }
  Napi::Object geometry = Napi::Object::New(env);
  geometry.Set("layers", layers);
  geometry.Set("kvHeads", cache.kv_heads);
  geometry.Set("headDimension", cache.head_dim);
  geometry.Set("windowTokens", cache.window);
  geometry.Set("ropeBase", info.cache.rope_base);
  geometry.Set("ropeLayers", info.cache.rope_on_window_layers_only ? "window" : "all");
  return geometry;
}

Napi::Int32Array int32_array(Napi::Env env, const std::vector<llama_token>& tokens) {
  Napi::Int32Array array = Napi::Int32Array::New(env, tokens.size());
  std::copy(tokens.begin(), tokens.end(), array.Data());
  return array;
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
                         InstanceMethod<&ModelObject::tokenize_pieces>("tokenizePieces"),
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
    request.threads = static_cast<int32_t>(to_uint32(options.Get("threads"), "options.threads"));
    auto pending = std::make_unique<Pending>(env);
    pending->on_progress = to_callback(info[1], "onProgress");
    const Napi::Promise promise = pending->deferred.Promise();
    const auto mailbox = data.mailbox;
    const uint64_t id = mailbox->begin(env, std::move(pending));
    const auto news = std::make_shared<News>(mailbox, id);
    request.on_progress = [news](float fraction) { news->progress(fraction); };
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    request.cancelled = cancelled.get();

    data.run_in_background(id, cancelled, [request, cancelled]() -> AddonData::Answer {
      return [model = load_model(request)](Napi::Env env) -> Napi::Value {
        return construct<Payload>(env, AddonData::of(env).model_class, model);
      };
    });
    return task(env, promise, [cancelled] { cancelled->store(true); });
  });
}

Napi::Value ModelObject::check_file(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    AddonData& data = AddonData::of(env);
    data.require_open();
    const std::string path = to_string(info[0], "path");
    auto pending = std::make_unique<Pending>(env);
    const Napi::Promise promise = pending->deferred.Promise();
    const uint64_t id = data.mailbox->begin(env, std::move(pending));
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    data.run_in_background(id, cancelled, [path]() -> AddonData::Answer {
      ModelFile file = find_model_file(path);
      read_model_header(file);
      return [](Napi::Env env) -> Napi::Value { return env.Undefined(); };
    });
    return promise;
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
    object.Set("kPermuted", info.cache.geometry.k_interleaved);
    object.Set("localOnly", info.cache.local_only.empty()
                                ? env.Null()
                                : Napi::String::New(env, info.cache.local_only).As<Napi::Value>());
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
    return int32_array(env, model()->tokenize(to_string(info[0], "text"), to_bool(info[1], "special")));
  });
}

Napi::Value ModelObject::tokenize_pieces(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    AddonData& data = AddonData::of(env);
    data.require_open();
    const Napi::Object list = to_object(info[0], "pieces");
    if (!list.IsArray()) throw EngineError(ErrorCode::InvalidArgument, "pieces is not an array");
    std::vector<std::pair<std::string, bool>> pieces;
    for (uint32_t i = 0; i < list.As<Napi::Array>().Length(); ++i) {
      const Napi::Object piece = to_object(list.Get(i), "pieces");
      pieces.emplace_back(to_string(piece.Get("text"), "pieces.text"), to_bool(piece.Get("special"), "pieces.special"));
    }
    auto pending = std::make_unique<Pending>(env);
    const Napi::Promise promise = pending->deferred.Promise();
    const uint64_t id = data.mailbox->begin(env, std::move(pending));
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    data.run_in_background(id, cancelled, [model = model(), pieces = std::move(pieces), cancelled]() -> AddonData::Answer {
      std::vector<std::vector<llama_token>> found;
      for (const auto& [text, special] : pieces) {
        if (cancelled->load()) throw EngineError(ErrorCode::Cancelled, "the process is ending");
        found.push_back(model->tokenize(text, special));
      }
      return [found = std::move(found)](Napi::Env env) -> Napi::Value {
        Napi::Array arrays = Napi::Array::New(env, found.size());
        for (uint32_t i = 0; i < found.size(); ++i) arrays.Set(i, int32_array(env, found[i]));
        return arrays;
      };
    });
    return promise;
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
