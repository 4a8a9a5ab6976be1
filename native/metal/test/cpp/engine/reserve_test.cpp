// Another reservation for a sequence that is open: cells are counted once, and in the order of the calls.
#include <gtest/gtest.h>

#include <future>

#include "backend.h"
#include "engine.h"

namespace muser {
namespace {

class Reserve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    initialize_backend(MUSER_TEST_LIBRARIES);
    LoadRequest request;
    request.path = MUSER_TEST_MODEL;
    model = load_model(request);
  }
  static void TearDownTestSuite() { model.reset(); }

  void SetUp() override {
    ASSERT_EQ(outcome([&](const Completion<>& completion) { engine.start(completion); }), "");
  }

  /// The code that a call ends with; empty = it ended well.
  static std::string outcome(const std::function<void(const Completion<>&)>& call) {
    auto ended = std::make_shared<std::promise<std::string>>();
    call({[ended] { ended->set_value(""); },
          [ended](const EngineError& error) { ended->set_value(name_of(error.code())); }});
    return ended->get_future().get();
  }

  std::string reserve(const std::shared_ptr<Sequence>& sequence, uint32_t tokens) {
    return outcome([&](const Completion<>& completion) { engine.reserve(sequence, tokens, completion); });
  }

  std::string dispose(const std::shared_ptr<Sequence>& sequence) {
    return outcome([&](const Completion<>& completion) { engine.dispose(sequence, completion); });
  }

  void evaluate(const std::shared_ptr<Sequence>& sequence, uint32_t tokens, std::string& result) {
    std::promise<std::string> ended;
    RunOperation::Callbacks callbacks;
    callbacks.done = [&ended](const GenerateResult&) { ended.set_value(""); };
    callbacks.failed = [&ended](const EngineError& error) { ended.set_value(name_of(error.code())); };
    const std::vector<llama_token> list(tokens, 100);
    engine.run(sequence, std::make_shared<RunOperation>(list, std::nullopt, engine.vocabulary_size(), callbacks));
    result = ended.get_future().get();
  }

  static std::shared_ptr<const Model> model;
  Engine engine{model, {.max_sequences = 2, .context_tokens = 1024, .chunk_tokens = 64}};
};

std::shared_ptr<const Model> Reserve::model;

TEST_F(Reserve, CountsCellsOnce) {
  const auto first = engine.open(100);
  const auto second = engine.open(200);
  EXPECT_EQ(reserve(first, 824), "");
  EXPECT_EQ(engine.stats().reserved_tokens, 1024U);
  EXPECT_EQ(reserve(second, 201), "CONTEXT_FULL");
  EXPECT_EQ(engine.stats().reserved_tokens, 1024U);
  EXPECT_EQ(second->reserved_tokens(), 200U);
  EXPECT_EQ(reserve(first, 823), "");
  EXPECT_EQ(reserve(second, 201), "");
  EXPECT_EQ(dispose(first), "");
  EXPECT_EQ(dispose(second), "");
  EXPECT_EQ(engine.stats().reserved_tokens, 0U);
}

TEST_F(Reserve, BindsWhatIsEvaluatedAndKeepsWhatIsThere) {
  const auto sequence = engine.open(50);
  std::string result;
  evaluate(sequence, 80, result);
  EXPECT_EQ(result, "CONTEXT_FULL");
  EXPECT_EQ(reserve(sequence, 80), "");
  evaluate(sequence, 80, result);
  EXPECT_EQ(result, "");
  EXPECT_EQ(reserve(sequence, 79), "RANGE_VIOLATION");
  EXPECT_EQ(sequence->reserved_tokens(), 80U);
  EXPECT_EQ(sequence->position(), 80U);
}

TEST_F(Reserve, IsRefusedByAClosedEngine) {
  const auto sequence = engine.open(50);
  engine.stop_and_wait();
  EXPECT_THROW(engine.reserve(sequence, 60, {[] {}, [](const EngineError&) {}}), EngineError);
}

}  // namespace
}  // namespace muser
