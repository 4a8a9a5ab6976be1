// What happens when llama.cpp fails on rows that were checked before: the cache is rebuilt, its sequences are lost, and
// later ones are right (llama.cpp #27068 is what goes wrong otherwise).
#include <gtest/gtest.h>

#include "backend.h"
#include "engine.h"
#include "scheduler.h"

namespace muser {
namespace {

class Recovery : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    initialize_backend(MUSER_TEST_LIBRARIES);
    LoadRequest request;
    request.path = MUSER_TEST_MODEL;
    model = load_model(request);
  }
  static void TearDownTestSuite() { model.reset(); }

  std::shared_ptr<Sequence> sequence(llama_seq_id id) {
    return std::make_shared<Sequence>(id, 512, model->info().cache.geometry);
  }

  /// The code that the operation ends with; empty = it ended well.
  std::shared_ptr<std::string> run(const std::shared_ptr<Sequence>& target, uint32_t tokens) {
    auto outcome = std::make_shared<std::string>("pending");
    RunOperation::Callbacks callbacks;
    callbacks.done = [outcome](const GenerateResult&) { outcome->clear(); };
    callbacks.failed = [outcome](const EngineError& error) { *outcome = name_of(error.code()); };
    std::vector<llama_token> list;
    for (uint32_t i = 0; i < tokens; ++i) list.push_back(static_cast<llama_token>(100 + i * 7 % 900));
    scheduler.submit(target, std::make_shared<RunOperation>(list, std::nullopt, 4096, callbacks));
    return outcome;
  }

  std::shared_ptr<std::string> immediate(const std::shared_ptr<Sequence>& target, ImmediateOperation::Work work,
                                         bool frees = false) {
    auto outcome = std::make_shared<std::string>("pending");
    scheduler.submit(target, std::make_shared<ImmediateOperation>(
                                 std::move(work), [outcome] { outcome->clear(); },
                                 [outcome](const EngineError& error) { *outcome = name_of(error.code()); }, frees));
    return outcome;
  }

  void settle() {
    while (scheduler.step()) {
    }
  }

  static std::shared_ptr<const Model> model;
  EngineOptions options{.max_sequences = 2, .context_tokens = 1024, .chunk_tokens = 64};
  std::atomic<bool> abort{false};
  Context context{model, options, &abort};
  SchedulerCounters counters;
  Scheduler scheduler{context, *model, options, counters};
};

std::shared_ptr<const Model> Recovery::model;

// fault: damaged-restore
TEST_F(Recovery, AStateThatLlamaRefusesLosesEverySequenceAndNoLaterOne) {
  const auto first = sequence(0);
  const auto second = sequence(1);
  run(first, 100);
  run(second, 100);
  settle();
  ASSERT_EQ(second->position(), 100U);
  const std::vector<float> expected = first->logits();

  // A stage whose state carries another magic number: llama.cpp refuses it.
  const auto refused = immediate(first, [&](Context& cache, Sequence& target) {
    kv::StateForm form = cache.form();
    form.magic ^= 1;
    kv::StageBuffer stage(cache.geometry(), form, 100, 101, 101);
    const std::vector<uint8_t> row(cache.geometry().wire_row_bytes());
    for (const uint32_t layer : {3U, 7U}) {
      for (const kv::Kind kind : {kv::Kind::K, kv::Kind::V}) {
        stage.put(layer, kind, 100, 1, kv::WireType::F16, row.data(), row.size());
      }
    }
    cache.install(stage, target.id());
  });
  const auto waiting = run(second, 10);
  const auto disposing = immediate(second, [](Context& cache, Sequence& target) { cache.clear(target.id()); }, true);
  settle();
  EXPECT_EQ(*refused, "ENGINE_FAILED");
  EXPECT_EQ(*waiting, "ENGINE_FAILED");
  EXPECT_EQ(*disposing, "");
  EXPECT_EQ(first->position(), 0U);
  EXPECT_THROW(second->logits(), EngineError);

  const auto late = run(first, 10);
  settle();
  EXPECT_EQ(*late, "SEQUENCE_STATE");

  scheduler.forget(*first);
  scheduler.forget(*second);
  const auto fresh = sequence(0);
  const auto again = run(fresh, 100);
  settle();
  EXPECT_EQ(*again, "");
  EXPECT_EQ(fresh->logits(), expected);
  EXPECT_EQ(counters.queue_depth.load(), 0U);
}

TEST_F(Recovery, AnErrorOfOneOperationLeavesTheOthersAlone) {
  const auto first = sequence(0);
  const auto second = sequence(1);
  run(second, 10);
  const auto refused = immediate(first, [](Context&, Sequence&) { throw EngineError(ErrorCode::RangeViolation, "no"); });
  settle();
  EXPECT_EQ(*refused, "RANGE_VIOLATION");
  EXPECT_EQ(second->position(), 10U);
}

TEST_F(Recovery, AnAbortedComputationIsNotTakenForAFailure) {
  const auto first = sequence(0);
  const auto outcome = run(first, 200);
  abort.store(true);
  scheduler.step();
  EXPECT_EQ(*outcome, "pending");
  scheduler.fail_all(EngineError(ErrorCode::Cancelled, "closing"));
  EXPECT_EQ(*outcome, "CANCELLED");
}

}  // namespace
}  // namespace muser
