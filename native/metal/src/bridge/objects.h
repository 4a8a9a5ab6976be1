#pragma once

#include <napi.h>

#include <memory>

#include "addon_data.h"
#include "engine.h"
#include "model.h"

namespace muser::bridge {

/// NativeModel of ts/native.ts.
class ModelObject : public Napi::ObjectWrap<ModelObject> {
 public:
  using Payload = std::shared_ptr<const Model>;

  static Napi::Function define(Napi::Env env);
  /// NativeAddon.loadModel.
  static Napi::Value load(const Napi::CallbackInfo& info);
  /// NativeAddon.checkModelFile.
  static Napi::Value check_file(const Napi::CallbackInfo& info);
  explicit ModelObject(const Napi::CallbackInfo& info) : ObjectWrap(info), model_(take_payload<Payload>(info)) {}

  /// Throws INVALID_ARGUMENT once closed.
  const std::shared_ptr<const Model>& model() const;

 private:
  Napi::Value info(const Napi::CallbackInfo& info);
  Napi::Value vocabulary_bytes(const Napi::CallbackInfo& info);
  Napi::Value tokenize(const Napi::CallbackInfo& info);
  Napi::Value tokenize_pieces(const Napi::CallbackInfo& info);
  Napi::Value piece_bytes(const Napi::CallbackInfo& info);
  Napi::Value is_end_of_generation(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  Payload model_;
};

/// NativeEngine.
class EngineObject : public Napi::ObjectWrap<EngineObject> {
 public:
  struct Payload {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<const Model> model;
  };

  static Napi::Function define(Napi::Env env);
  /// NativeAddon.createEngine.
  static Napi::Value create(const Napi::CallbackInfo& info);
  explicit EngineObject(const Napi::CallbackInfo& info) : ObjectWrap(info), payload_(take_payload<Payload>(info)) {}

 private:
  Napi::Value open(const Napi::CallbackInfo& info);
  Napi::Value stats(const Napi::CallbackInfo& info);
  Napi::Value sequence_bytes(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  Payload payload_;
};

/// NativeSequence. Dropping it frees the rows.
class SequenceObject : public Napi::ObjectWrap<SequenceObject> {
 public:
  struct Payload {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<const Model> model;  ///< for checks of token ids
    std::shared_ptr<Sequence> sequence;
  };

  static Napi::Function define(Napi::Env env);
  explicit SequenceObject(const Napi::CallbackInfo& info) : ObjectWrap(info), payload_(take_payload<Payload>(info)) {}
  ~SequenceObject() override;

 private:
  Napi::Value position(const Napi::CallbackInfo& info);
  Napi::Value evaluate(const Napi::CallbackInfo& info);
  Napi::Value generate(const Napi::CallbackInfo& info);
  Napi::Value last_logits(const Napi::CallbackInfo& info);
  Napi::Value export_range(const Napi::CallbackInfo& info);
  Napi::Value stage(const Napi::CallbackInfo& info);
  Napi::Value install(const Napi::CallbackInfo& info);
  Napi::Value truncate(const Napi::CallbackInfo& info);
  Napi::Value reserve(const Napi::CallbackInfo& info);
  Napi::Value fork(const Napi::CallbackInfo& info);
  Napi::Value pack_window(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);

  Engine& engine();
  std::unique_ptr<Pending> pending(const Napi::CallbackInfo& info);
  /// Registers a promise and lets `start` begin the work that settles it.
  Napi::Value start_immediate(const Napi::CallbackInfo& info, const Napi::Object* argument,
                              const std::function<void(Mailbox&, uint64_t)>& start);
  Napi::Value run(const Napi::CallbackInfo& info, std::vector<llama_token> tokens,
                  std::optional<GenerateOptions> options, std::unique_ptr<Pending> pending);

  Payload payload_;
  bool disposed_ = false;
};

/// NativeKvStage.
class StageObject : public Napi::ObjectWrap<StageObject> {
 public:
  using Payload = std::shared_ptr<Stage>;

  static Napi::Function define(Napi::Env env);
  explicit StageObject(const Napi::CallbackInfo& info);
  ~StageObject() override;

  const std::shared_ptr<Stage>& stage() const { return stage_; }

 private:
  Napi::Value size_bytes(const Napi::CallbackInfo& info);
  Napi::Value put(const Napi::CallbackInfo& info);
  Napi::Value complete(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);

  Payload stage_;
};

/// NativeKvExport.
class ExportObject : public Napi::ObjectWrap<ExportObject> {
 public:
  using Payload = std::shared_ptr<const kv::ExportView>;

  static Napi::Function define(Napi::Env env);
  explicit ExportObject(const Napi::CallbackInfo& info);
  ~ExportObject() override;

 private:
  Napi::Value size_bytes(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  Napi::Value dispose(const Napi::CallbackInfo& info);

  void release(Napi::Env env);

  Payload view_;
  size_t size_bytes_;
};

}  // namespace muser::bridge
