// A cancel that comes when the weights are read already, which JavaScript cannot time.
#include <gtest/gtest.h>

#include <atomic>

#include "backend.h"
#include "error.h"
#include "model.h"

namespace muser {
namespace {

TEST(Loading, IsCancelledWhileTheCacheIsLookedAt) {
  initialize_backend(MUSER_TEST_LIBRARIES);
  std::atomic<bool> cancelled{false};
  int ends = 0;
  LoadRequest request;
  request.path = MUSER_TEST_MODEL;
  request.gpu_layers = 1;  // shares nothing with the models of other tests
  request.cancelled = &cancelled;
  request.on_progress = [&](float fraction) {
    if (fraction < 1.0F) return;
    ++ends;
    cancelled = true;
  };
  try {
    load_model(request);
    FAIL() << "it was loaded";
  } catch (const EngineError& error) {
    EXPECT_EQ(error.code(), ErrorCode::Cancelled);
  }
  EXPECT_EQ(ends, 1);
  cancelled = false;
  request.on_progress = nullptr;
  EXPECT_NE(load_model(request), nullptr);
}

}  // namespace
}  // namespace muser
