#include "convert.h"
#include "objects.h"

namespace muser::bridge {

namespace {

std::vector<llama_logit_bias> read_bias(const Napi::Value& value, uint32_t vocabulary_size) {
  constexpr const char* kPath = "options.logitBias";
  if (!value.IsArray()) throw EngineError(ErrorCode::InvalidArgument, std::string(kPath) + " must be an array");
  const auto pairs = value.As<Napi::Array>();
  std::vector<llama_logit_bias> biases;
  for (uint32_t i = 0; i < pairs.Length(); ++i) {
    const Napi::Object pair = to_object(pairs.Get(i), kPath);
    const uint32_t token = to_uint32(pair.Get(0U), kPath);
    if (token >= vocabulary_size) {
      throw EngineError(ErrorCode::InvalidArgument, std::string(kPath) + " names token " + std::to_string(token) +
                                                        ", the vocabulary has " + std::to_string(vocabulary_size));
    }
    biases.push_back({static_cast<llama_token>(token), static_cast<float>(to_double(pair.Get(1U), kPath))});
  }
  return biases;
}

GenerateOptions read_options(const Napi::Object& object, uint32_t vocabulary_size) {
  const auto real = [&](const char* name) { return static_cast<float>(to_double(object.Get(name), name)); };
  const auto whole = [&](const char* name) { return to_uint32(object.Get(name), name); };
  GenerateOptions options;
  options.max_tokens = whole("maxTokens");
  options.sampling.temperature = real("temperature");
  options.sampling.top_k = static_cast<int32_t>(whole("topK"));
  options.sampling.top_p = real("topP");
  options.sampling.min_p = real("minP");
  options.sampling.repeat_penalty = real("repeatPenalty");
  options.sampling.frequency_penalty = real("frequencyPenalty");
  options.sampling.presence_penalty = real("presencePenalty");
  options.sampling.penalty_last_n = static_cast<int32_t>(whole("penaltyLastN"));
  options.sampling.seed = whole("seed");
  options.sampling.logit_bias = read_bias(object.Get("logitBias"), vocabulary_size);
  options.stop_tokens = to_token_list(object.Get("stopTokens"), "options.stopTokens");
  options.stop_strings = to_string_list(object.Get("stopStrings"), "options.stopStrings");
  return options;
}

Napi::Value result_of(Napi::Env env, const GenerateResult& result) {
  Napi::Object timings = Napi::Object::New(env);
  timings.Set("lastPromptTokenMs", result.timings.last_prompt_token_ms);
  timings.Set("firstTokenMs", result.timings.first_token_ms);
  timings.Set("doneMs", result.timings.done_ms);
  Napi::Object object = Napi::Object::New(env);
  object.Set("reason", result.reason);
  object.Set("promptTokens", result.prompt_tokens);
  object.Set("generatedTokens", result.generated_tokens);
  object.Set("timings", timings);
  return object;
}

}  // namespace

Napi::Function SequenceObject::define(Napi::Env env) {
  return DefineClass(env, "NativeSequence",
                     {
                         InstanceMethod<&SequenceObject::position>("position"),
                         InstanceMethod<&SequenceObject::evaluate>("evaluate"),
                         InstanceMethod<&SequenceObject::generate>("generate"),
                         InstanceMethod<&SequenceObject::last_logits>("lastLogits"),
                         InstanceMethod<&SequenceObject::export_range>("exportRange"),
                         InstanceMethod<&SequenceObject::stage>("stage"),
                         InstanceMethod<&SequenceObject::install>("install"),
                         InstanceMethod<&SequenceObject::truncate>("truncate"),
                         InstanceMethod<&SequenceObject::reserve>("reserve"),
                         InstanceMethod<&SequenceObject::fork>("fork"),
                         InstanceMethod<&SequenceObject::pack_window>("packWindow"),
                         InstanceMethod<&SequenceObject::dispose>("dispose"),
                     });
}

SequenceObject::~SequenceObject() {
  if (disposed_ || !payload_.engine) return;
  payload_.engine->dispose(payload_.sequence, {[] {}, [](const EngineError&) {}});
}

Engine& SequenceObject::engine() {
  if (disposed_) throw EngineError(ErrorCode::SequenceState, "the sequence is disposed");
  return *payload_.engine;
}

/// The sequence object, and with it the engine, stays alive while a promise is pending.
std::unique_ptr<Pending> SequenceObject::pending(const Napi::CallbackInfo& info) {
  auto pending = std::make_unique<Pending>(info.Env());
  pending->owner = Napi::Persistent(info.This().As<Napi::Object>());
  return pending;
}

Napi::Value SequenceObject::start_immediate(const Napi::CallbackInfo& info, const Napi::Object* argument,
                                            const std::function<void(Mailbox&, uint64_t)>& start) {
  const Napi::Env env = info.Env();
  auto waiting = pending(info);
  if (argument != nullptr) waiting->argument = Napi::Persistent(*argument);
  const Napi::Promise promise = waiting->deferred.Promise();
  const auto mailbox = AddonData::of(env).mailbox;
  const uint64_t id = mailbox->begin(env, std::move(waiting));
  try {
    start(*mailbox, id);
  } catch (...) {
    mailbox->reject(id, current_error());
  }
  return promise;
}

Napi::Value SequenceObject::position(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), payload_.sequence->position());
}

Napi::Value SequenceObject::run(const Napi::CallbackInfo& info, std::vector<llama_token> tokens,
                                std::optional<GenerateOptions> options, std::unique_ptr<Pending> pending) {
  const Napi::Env env = info.Env();
  engine();
  payload_.model->check_tokens("token", tokens.data(), tokens.size());
  const Napi::Promise promise = pending->deferred.Promise();
  const bool wants_progress = !pending->on_progress.IsEmpty();
  const auto mailbox = AddonData::of(env).mailbox;
  const uint64_t id = mailbox->begin(env, std::move(pending));
  const auto news = std::make_shared<News>(mailbox, id);
  RunOperation::Callbacks callbacks;
  if (wants_progress) callbacks.progress = [news](uint32_t done) { news->progress(done); };
  if (options) {
    const auto completion = mailbox->completion<GenerateResult>(id, result_of);
    callbacks.output = [news](std::string&& text, const std::vector<llama_token>& tokens) {
      news->output(std::move(text), tokens);
    };
    callbacks.done = completion.done;
    callbacks.failed = completion.failed;
  } else {
    const auto completion = mailbox->completion(id);
    callbacks.done = [done = completion.done](const GenerateResult&) { done(); };
    callbacks.failed = completion.failed;
  }
  try {
    const auto operation = std::make_shared<RunOperation>(std::move(tokens), std::move(options),
                                                          payload_.engine->vocabulary_size(), callbacks);
    payload_.engine->run(payload_.sequence, operation);
    return task(env, promise, [operation, weak = std::weak_ptr<Engine>(payload_.engine)] {
      operation->cancel();
      if (const auto engine = weak.lock()) engine->wake();
    });
  } catch (...) {
    mailbox->reject(id, current_error());
    return task(env, promise, [] {});
  }
}

Napi::Value SequenceObject::evaluate(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    auto waiting = pending(info);
    waiting->on_progress = to_callback(info[1], "onProgress");
    return run(info, to_tokens(info[0], "tokens"), std::nullopt, std::move(waiting));
  });
}

Napi::Value SequenceObject::generate(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    auto options = read_options(to_object(info[1], "options"), payload_.engine->vocabulary_size());
    auto waiting = pending(info);
    waiting->on_output = to_callback(info[2], "onOutput");
    waiting->on_progress = to_callback(info[3], "onProgress");
    return run(info, to_tokens(info[0], "prompt"), std::move(options), std::move(waiting));
  });
}

Napi::Value SequenceObject::last_logits(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    const std::vector<float> logits = payload_.sequence->logits();
    Napi::Float32Array array = Napi::Float32Array::New(info.Env(), logits.size());
    std::copy(logits.begin(), logits.end(), array.Data());
    return array;
  });
}

Napi::Value SequenceObject::export_range(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    engine();
    const uint32_t start = to_uint32(info[0], "start");
    const uint32_t end = to_uint32(info[1], "end");
    const uint32_t window_start = to_uint32(info[2], "windowStart");
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      using View = std::shared_ptr<const kv::ExportView>;
      engine().export_range(payload_.sequence, start, end, window_start,
                            mailbox.completion<View>(id, [](Napi::Env env, View view) -> Napi::Value {
                              return construct<ExportObject::Payload>(env, AddonData::of(env).export_class, view);
                            }));
    });
  });
}

Napi::Value SequenceObject::stage(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    auto stage = engine().stage(*payload_.sequence, to_uint32(info[0], "start"), to_uint32(info[1], "end"),
                                to_uint32(info[2], "windowStart"));
    return construct<StageObject::Payload>(env, AddonData::of(env).stage_class, stage);
  });
}

Napi::Value SequenceObject::install(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    engine();
    const auto stage = unwrap<StageObject>(info[0], AddonData::of(env).stage_class, "stage").stage();
    const Napi::Object argument = info[0].As<Napi::Object>();
    return start_immediate(info, &argument, [&](Mailbox& mailbox, uint64_t id) {
      engine().install(payload_.sequence, stage, mailbox.completion(id));
    });
  });
}

Napi::Value SequenceObject::truncate(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    const uint32_t position = to_uint32(info[0], "position");
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      engine().truncate(payload_.sequence, position, mailbox.completion(id));
    });
  });
}

Napi::Value SequenceObject::reserve(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    const uint32_t tokens = to_uint32(info[0], "tokens");
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      engine().reserve(payload_.sequence, tokens, mailbox.completion(id));
    });
  });
}

Napi::Value SequenceObject::fork(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    const uint32_t reserve_tokens = to_uint32(info[0], "reserveTokens");
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      // The source pins the engine until the promise settles.
      const std::weak_ptr<Engine> weak = payload_.engine;
      const auto model = payload_.model;
      using Copy = std::shared_ptr<Sequence>;
      engine().fork(payload_.sequence, reserve_tokens,
                    mailbox.completion<Copy>(id, [weak, model](Napi::Env env, Copy copy) -> Napi::Value {
                      return construct<SequenceObject::Payload>(env, AddonData::of(env).sequence_class,
                                                                {weak.lock(), model, copy});
                    }));
    });
  });
}

Napi::Value SequenceObject::pack_window(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      engine().pack_window(payload_.sequence, mailbox.completion(id));
    });
  });
}

Napi::Value SequenceObject::dispose(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    engine();
    return start_immediate(info, nullptr, [&](Mailbox& mailbox, uint64_t id) {
      engine().dispose(payload_.sequence, mailbox.completion(id));
      disposed_ = true;
      // Nothing asks for it any more, and this object may wait long for the garbage collector.
      payload_.model.reset();
    });
  });
}

}  // namespace muser::bridge
