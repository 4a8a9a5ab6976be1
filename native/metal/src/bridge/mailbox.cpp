#include "mailbox.h"

#include <utility>

#include "convert.h"

namespace muser::bridge {

namespace {

/// A callback that throws must not keep the others from running: the error goes where uncaught ones go.
template <typename Call>
void isolated(Napi::Env env, Call call) {
  const Napi::HandleScope scope(env);
  try {
    call();
  } catch (const Napi::Error& error) {
    napi_fatal_exception(env, error.Value());
  }
}

}  // namespace

std::shared_ptr<Mailbox> Mailbox::create(Napi::Env env) {
  auto mailbox = std::make_shared<Mailbox>();
  auto* self = new std::shared_ptr<Mailbox>(mailbox);
  const auto finalize = [](napi_env, void* data, void*) {
    auto* pointer = static_cast<std::shared_ptr<Mailbox>*>(data);
    (*pointer)->close();
    delete pointer;
  };
  const napi_status status =
      napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, "muser engine"), 0, 1, self,
                                      finalize, mailbox.get(), on_wake, &mailbox->wake_);
  if (status != napi_ok) {
    delete self;
    throw Napi::Error::New(env, "the engine's way to JavaScript could not be made");
  }
  napi_unref_threadsafe_function(env, mailbox->wake_);
  return mailbox;
}

void Mailbox::post(Message message) {
  const std::lock_guard lock(mutex_);
  if (wake_ == nullptr) return;
  messages_.push_back(std::move(message));
  if (wake_pending_) return;
  // Under the lock: the function cannot be finalized while it is used.
  if (napi_call_threadsafe_function(wake_, nullptr, napi_tsfn_nonblocking) == napi_ok) {
    wake_pending_ = true;
  } else {
    wake_ = nullptr;
    messages_.clear();
  }
}

void Mailbox::on_wake(napi_env env, napi_value, void* context, void*) {
  if (env != nullptr) static_cast<Mailbox*>(context)->run_messages(env);
}

void Mailbox::run_messages(Napi::Env env) {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(mutex_);
    wake_pending_ = false;
    messages.swap(messages_);
  }
  for (const Message& message : messages) {
    isolated(env, [&] { message(env); });
  }
}

uint64_t Mailbox::begin(Napi::Env env, std::unique_ptr<Pending> pending) {
  const std::lock_guard lock(mutex_);
  if (pending_.empty() && wake_ != nullptr) napi_ref_threadsafe_function(env, wake_);
  const uint64_t id = next_id_++;
  pending_.emplace(id, std::move(pending));
  return id;
}

Pending* Mailbox::find(uint64_t id) {
  const auto found = pending_.find(id);
  return found == pending_.end() ? nullptr : found->second.get();
}

void Mailbox::settle(uint64_t id, Napi::Env env, const std::function<void(Napi::Promise::Deferred&)>& end) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const std::unique_ptr<Pending> pending = std::move(found->second);
  pending_.erase(found);
  if (pending_.empty()) {
    const std::lock_guard lock(mutex_);
    if (wake_ != nullptr) napi_unref_threadsafe_function(env, wake_);
  }
  end(pending->deferred);
}

void Mailbox::resolve(uint64_t id, std::function<Napi::Value(Napi::Env)> make) {
  post([self = shared_from_this(), id, make = std::move(make)](Napi::Env env) {
    self->settle(id, env, [&](Napi::Promise::Deferred& deferred) {
      try {
        deferred.Resolve(make(env));
      } catch (const Napi::Error& error) {
        deferred.Reject(error.Value());
      }
    });
  });
}

void Mailbox::reject(uint64_t id, const EngineError& error) {
  post([self = shared_from_this(), id, error](Napi::Env env) {
    self->settle(id, env, [&](Napi::Promise::Deferred& deferred) { deferred.Reject(to_js(env, error).Value()); });
  });
}

void Mailbox::close() {
  // References to JavaScript objects must go while there is an environment.
  pending_.clear();
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  messages_.clear();
}

void News::output(std::string&& text, const std::vector<llama_token>& tokens) {
  const std::lock_guard lock(mutex_);
  text_ += text;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  has_output_ = true;
  schedule();
}

void News::progress(double done) {
  const std::lock_guard lock(mutex_);
  progress_ = done;
  has_progress_ = true;
  schedule();
}

void News::schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  mailbox_->post([self = shared_from_this()](Napi::Env env) { self->deliver(env); });
}

void News::deliver(Napi::Env env) {
  std::unique_lock lock(mutex_);
  scheduled_ = false;
  const bool has_output = std::exchange(has_output_, false);
  const bool has_progress = std::exchange(has_progress_, false);
  const double progress = progress_;
  const std::string text = std::exchange(text_, {});
  const std::vector<llama_token> tokens = std::exchange(tokens_, {});
  lock.unlock();
  // A callback may end the environment and with it the references: look them up for each call, and call by value.
  isolated(env, [&] {
    Pending* pending = mailbox_->find(id_);
    if (!has_progress || pending == nullptr || pending->on_progress.IsEmpty()) return;
    pending->on_progress.Value().Call({Napi::Number::New(env, progress)});
  });
  isolated(env, [&] {
    Pending* pending = mailbox_->find(id_);
    if (!has_output || pending == nullptr || pending->on_output.IsEmpty()) return;
    Napi::Object output = Napi::Object::New(env);
    output.Set("text", text);
    output.Set("tokens", numbers(env, tokens));
    pending->on_output.Value().Call({output});
  });
}

}  // namespace muser::bridge
