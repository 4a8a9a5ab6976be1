#pragma once

#include <napi.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "mailbox.h"

namespace muser::bridge {

/// Work on a thread of its own: a model that is being loaded, a text that is being tokenized.
struct BackgroundThread {
  std::shared_ptr<std::atomic<bool>> cancelled;
  std::thread thread;
};

/// What one JavaScript environment (main thread or worker) has of this addon.
struct AddonData {
  std::shared_ptr<Mailbox> mailbox;
  Napi::FunctionReference model_class;
  Napi::FunctionReference engine_class;
  Napi::FunctionReference sequence_class;
  Napi::FunctionReference stage_class;
  Napi::FunctionReference export_class;
  std::vector<std::weak_ptr<Engine>> engines;
  std::unordered_map<uint64_t, std::shared_ptr<Engine>> starting;  ///< by the promise's number
  std::list<BackgroundThread> background;
  Napi::FunctionReference log_sink;
  bool closed = false;

  static AddonData& of(Napi::Env env) { return *env.GetInstanceData<AddonData>(); }

  void remember(const std::shared_ptr<Engine>& engine) {
    std::erase_if(engines, [](const auto& entry) { return entry.expired(); });
    engines.push_back(engine);
  }

  /// What a background thread has found, as JavaScript's thread makes a value of it.
  using Answer = std::function<Napi::Value(Napi::Env)>;
  /// Runs `work` on a thread of its own; what it gives or throws settles promise `id`.
  void run_in_background(uint64_t id, std::shared_ptr<std::atomic<bool>> cancelled, std::function<Answer()> work);

  /// Ends every thread. Nothing of them may run while the process's libraries go away. A second call does nothing.
  void shut_down();
  /// Throws after `shut_down`: no new thread may start.
  void require_open() const;
};

/// Hands a native value to the constructor of a wrapped class, which moves it out.
template <typename Payload>
Napi::Object construct(Napi::Env env, const Napi::FunctionReference& constructor, Payload payload) {
  return constructor.New({Napi::External<Payload>::New(env, &payload)});
}

/// The constructor's side of `construct`; JavaScript cannot make these objects itself.
template <typename Payload>
Payload take_payload(const Napi::CallbackInfo& info) {
  if (info.Length() != 1 || !info[0].IsExternal()) {
    throw Napi::TypeError::New(info.Env(), "objects of this class come from the addon's functions");
  }
  return std::move(*info[0].As<Napi::External<Payload>>().Data());
}

/// The native object behind a JavaScript one. Throws INVALID_ARGUMENT when it is of another class.
template <typename Object>
Object& unwrap(const Napi::Value& value, const Napi::FunctionReference& constructor, const char* path) {
  if (!value.IsObject() || !value.As<Napi::Object>().InstanceOf(constructor.Value())) {
    throw EngineError(ErrorCode::InvalidArgument, std::string(path) + " is not an object of this addon");
  }
  return *Object::Unwrap(value.As<Napi::Object>());
}

}  // namespace muser::bridge
