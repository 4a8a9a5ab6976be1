#pragma once

#include <napi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "engine.h"

namespace muser::bridge {

/// What JavaScript waits for. Lives and dies on JavaScript's thread; native threads know its number only.
struct Pending {
  explicit Pending(Napi::Env env) : deferred(Napi::Promise::Deferred::New(env)) {}

  Napi::Promise::Deferred deferred;
  Napi::FunctionReference on_output;
  Napi::FunctionReference on_progress;
  Napi::ObjectReference owner;      ///< the JavaScript object that was called
  Napi::ObjectReference argument;   ///< an object that the call works on
};

/// The one way from native threads to JavaScript: messages are queued, and one wake-up of the loop runs all that are
/// there. Keeps the process alive exactly while a promise is pending.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  using Message = std::function<void(Napi::Env)>;

  static std::shared_ptr<Mailbox> create(Napi::Env env);

  /// Any thread. Dropped without notice once the environment goes away.
  void post(Message message);

  /// JavaScript's thread: registers a promise; its number is what native code carries.
  uint64_t begin(Napi::Env env, std::unique_ptr<Pending> pending);
  /// JavaScript's thread: null when it is settled.
  Pending* find(uint64_t id);
  /// Any thread: resolves with what `make` gives, on JavaScript's thread.
  void resolve(uint64_t id, std::function<Napi::Value(Napi::Env)> make);
  void reject(uint64_t id, const EngineError& error);

  /// A completion that settles promise `id`.
  template <typename... Result>
  Completion<Result...> completion(uint64_t id,
                                   std::type_identity_t<std::function<Napi::Value(Napi::Env, Result...)>> make) {
    auto self = shared_from_this();
    return {[self, id, make](Result... result) {
              self->resolve(id, [make, result...](Napi::Env env) { return make(env, result...); });
            },
            [self, id](const EngineError& error) { self->reject(id, error); }};
  }
  Completion<> completion(uint64_t id) {
    return completion<>(id, [](Napi::Env env) { return env.Undefined(); });
  }

  /// JavaScript's thread, when the environment ends.
  void close();

 private:
  void settle(uint64_t id, Napi::Env env, const std::function<void(Napi::Promise::Deferred&)>& end);
  void run_messages(Napi::Env env);
  static void on_wake(napi_env env, napi_value function, void* context, void* data);

  std::mutex mutex_;
  std::vector<Message> messages_;
  bool wake_pending_ = false;
  napi_threadsafe_function wake_ = nullptr;  ///< null once closed

  // JavaScript's thread only.
  std::unordered_map<uint64_t, std::unique_ptr<Pending>> pending_;
  uint64_t next_id_ = 1;
};

/// A generation's or evaluation's news on its way to JavaScript. What is not yet delivered is joined together, so that
/// a busy loop gets one call with several tokens instead of a queue of calls.
class News : public std::enable_shared_from_this<News> {
 public:
  News(std::shared_ptr<Mailbox> mailbox, uint64_t id) : mailbox_(std::move(mailbox)), id_(id) {}

  void output(std::string&& text, const std::vector<llama_token>& tokens);
  void progress(double done);

 private:
  void schedule();
  void deliver(Napi::Env env);

  std::shared_ptr<Mailbox> mailbox_;
  const uint64_t id_;
  std::mutex mutex_;
  std::string text_;
  std::vector<llama_token> tokens_;
  bool has_output_ = false;
  bool has_progress_ = false;
  double progress_ = 0;
  bool scheduled_ = false;
};

}  // namespace muser::bridge
