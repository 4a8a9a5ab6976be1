// The addon's entry: NativeAddon of ts/native.ts.
#include <napi.h>

#include <optional>
#include <utility>

#include "backend.h"
#include "convert.h"
#include "objects.h"

namespace muser::bridge {

void AddonData::require_open() const {
  if (closed) throw EngineError(ErrorCode::EngineFailed, "the process is ending");
}

void AddonData::shut_down() {
  if (std::exchange(closed, true)) return;
  mailbox->close();
  set_log_sink(this, nullptr);
  for (BackgroundThread& work : background) work.cancelled->store(true);
  for (BackgroundThread& work : background) {
    if (work.thread.joinable()) work.thread.join();
  }
  background.clear();
  for (const auto& entry : engines) {
    if (const auto engine = entry.lock()) engine->stop_and_wait();
  }
  starting.clear();
}

void AddonData::run_in_background(uint64_t id, std::shared_ptr<std::atomic<bool>> cancelled,
                                  std::function<Answer()> work) {
  const auto entry = background.insert(background.end(), BackgroundThread{std::move(cancelled), {}});
  entry->thread = std::thread([mailbox = mailbox, id, entry, work = std::move(work)] {
    Answer answer;
    std::optional<EngineError> failure;
    try {
      answer = work();
    } catch (...) {
      failure = current_error();
    }
    mailbox->post([entry](Napi::Env env) {
      entry->thread.join();
      of(env).background.erase(entry);
    });
    if (failure) {
      mailbox->reject(id, *failure);
    } else {
      mailbox->resolve(id, std::move(answer));
    }
  });
}

namespace {

Napi::Value initialize(const Napi::CallbackInfo& info) {
  return guard(info.Env(), [&]() -> Napi::Value {
    initialize_backend(to_string(info[0], "libraryFolder"));
    return info.Env().Undefined();
  });
}

Napi::Value device_of(Napi::Env env, const std::optional<platform::Device>& device) {
  if (!device) return env.Null();
  Napi::Object object = Napi::Object::New(env);
  object.Set("name", device->name);
  object.Set("recommendedWorkingSetBytes", static_cast<double>(device->recommended_working_set_bytes));
  object.Set("thermalState", device->thermal_state);
  object.Set("memoryPressure", device->memory_pressure);
  return object;
}

Napi::Value describe(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    const BackendDescription description = describe_backend();
    Napi::Array backends = Napi::Array::New(env);
    for (uint32_t i = 0; i < description.backends.size(); ++i) {
      const BackendDevice& device = description.backends[i];
      Napi::Object object = Napi::Object::New(env);
      object.Set("name", device.name);
      object.Set("description", device.description);
      object.Set("kind", device.kind);
      object.Set("memoryBytes", static_cast<double>(device.memory_bytes));
      object.Set("freeBytes", static_cast<double>(device.free_bytes));
      backends.Set(i, object);
    }
    Napi::Object object = Napi::Object::New(env);
    object.Set("platform", description.platform);
    object.Set("llamaVersion", description.llama_version);
    object.Set("llamaCommit", description.llama_commit);
    object.Set("backends", backends);
    object.Set("availableMemoryBytes", static_cast<double>(description.available_memory_bytes));
    object.Set("device", device_of(env, description.device));
    return object;
  });
}

Napi::Value set_sink(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guard(env, [&]() -> Napi::Value {
    AddonData& data = AddonData::of(env);
    data.log_sink = to_callback(info[0], "sink");
    if (data.log_sink.IsEmpty()) {
      set_log_sink(&data, nullptr);
      return env.Undefined();
    }
    set_log_sink(&data, [mailbox = data.mailbox](bool is_error, const std::string& text) {
      mailbox->post([is_error, text](Napi::Env env) {
        AddonData& data = AddonData::of(env);
        if (data.log_sink.IsEmpty()) return;
        data.log_sink.Value().Call({Napi::String::New(env, is_error ? "error" : "warn"), Napi::String::New(env, text)});
      });
    });
    return env.Undefined();
  });
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  auto* data = new AddonData();
  env.SetInstanceData(data);
  data->mailbox = Mailbox::create(env);
  data->model_class = Napi::Persistent(ModelObject::define(env));
  data->engine_class = Napi::Persistent(EngineObject::define(env));
  data->sequence_class = Napi::Persistent(SequenceObject::define(env));
  data->stage_class = Napi::Persistent(StageObject::define(env));
  data->export_class = Napi::Persistent(ExportObject::define(env));
  // Workers that are terminated run cleanup hooks, but process.exit runs none: it goes straight to the libraries' static
  // destructors. It does emit 'exit' before. The hook is registered after the mailbox, so it runs before the mailbox's end.
  env.AddCleanupHook([data] { data->shut_down(); });
  const Napi::Object process = env.Global().Get("process").As<Napi::Object>();
  const auto on_exit = [](const Napi::CallbackInfo& info) { AddonData::of(info.Env()).shut_down(); };
  process.Get("once").As<Napi::Function>().Call(
      process, {Napi::String::New(env, "exit"), Napi::Function::New(env, on_exit, "muserEngineExit")});
  exports.Set("initialize", Napi::Function::New<initialize>(env, "initialize"));
  exports.Set("describe", Napi::Function::New<describe>(env, "describe"));
  exports.Set("setLogSink", Napi::Function::New<set_sink>(env, "setLogSink"));
  exports.Set("checkModelFile", Napi::Function::New<ModelObject::check_file>(env, "checkModelFile"));
  exports.Set("loadModel", Napi::Function::New<ModelObject::load>(env, "loadModel"));
  exports.Set("createEngine", Napi::Function::New<EngineObject::create>(env, "createEngine"));
  return exports;
}

}  // namespace

NODE_API_MODULE(muser_engine, init)

}  // namespace muser::bridge
