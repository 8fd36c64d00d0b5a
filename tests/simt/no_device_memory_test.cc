// A device without memory for a model or for a batch: an error and nothing more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/engine/engine.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

using testing::HasSubstr;

class NoDeviceMemory : public testing::Test {
 protected:
  ~NoDeviceMemory() override {
    simt::FailAllocations(0);
    simt::FailGraphs(0);
    simt::FailGraphLaunches(0);
  }

  static absl::StatusOr<std::unique_ptr<model::LanguageModel>> Load(DeviceContext& context) {
    model::ModelOptions options;
    options.limits.max_unbounded_tokens = 4096;
    return model::LanguageModel::Load(GoldenFolder() + "/native/sw-ovq", options, context);
  }
};

TEST_F(NoDeviceMemory, IsAnErrorWhereTheDeviceIsOpened) {
  const auto other = MakeContext(Device::kCuda);
  const size_t free_bytes = other->Gpu()->free_bytes;
  for (const int first : {0, 1}) {
    simt::FailAllocations(1, first);
    const absl::Status status = DeviceContext::Make(Device::kCuda, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes needed at once"));
    EXPECT_EQ(other->Gpu()->free_bytes, free_bytes);
  }
}

TEST_F(NoDeviceMemory, IsAnErrorOfTheLoadWhicheverBufferHasNone) {
  const auto context = MakeContext(Device::kCuda);
  const size_t free_bytes = context->Gpu()->free_bytes;
  int n_failed = 0;
  for (bool loaded = false; !loaded; ++n_failed) {
    simt::FailAllocations(1, n_failed);
    const absl::Status status = Load(*context).status();
    loaded = simt::AllocationsToFail() > 0;
    ASSERT_EQ(status.ok(), loaded) << n_failed << ": " << status;
    EXPECT_EQ(context->Gpu()->free_bytes, free_bytes) << n_failed;
    if (loaded) break;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                testing::ContainsRegex("sw-ovq: memory of the GPU: [0-9]+ bytes needed at once, "
                                       "[0-9]+ of [0-9]+ bytes are free"));
  }
  EXPECT_GT(n_failed, 10);
}

// An engine whose iterations the test runs.
class NoMemoryForAStep : public NoDeviceMemory {
 protected:
  struct Served {
    explicit Served(const model::LanguageModel& model)
        : engine({engine::test::Served(model), engine::EngineOptions(), {}},
                 MakeContext(Device::kCuda)) {}
    std::shared_ptr<engine::TokenStream> Start(engine::GenerateRequest request) {
      auto stream = std::make_shared<engine::TokenStream>(1000);
      EXPECT_TRUE(engine.Submit(std::move(request), stream).ok());
      return stream;
    }
    engine::test::Answers Finish(engine::TokenStream& stream) {
      while (engine.RunIteration()) {
      }
      return engine::test::ReadAll(stream);
    }
    engine::test::Answers Run(engine::GenerateRequest request) {
      return Finish(*Start(std::move(request)));
    }

    engine::Engine engine;
  };

  std::unique_ptr<DeviceContext> loader_ = MakeContext(Device::kCuda);
  std::unique_ptr<model::LanguageModel> model_ = *Load(*loader_);
};

engine::GenerateRequest Short() { return engine::test::SampleRequest({1, 2, 3}, 8); }

TEST_F(NoMemoryForAStep, EndsItsCallsAndNothingElse) {
  const std::vector<int32_t> right = Served(*model_).Run(Short()).of[0].tokens;
  Served served(*model_);
  engine::Engine& engine = served.engine;
  std::string id;
  engine.sessions().Create({},
                           [&](const absl::StatusOr<engine::SessionInfo>& info) { id = info->id; });
  engine.RunIteration();
  engine::GenerateRequest turn = Short();
  turn.session_id = id;
  const auto in_session = served.Start(turn), once = served.Start(Short());
  simt::FailAllocations(1);
  const engine::test::Answers session_answers = served.Finish(*in_session),
                              answers = engine::test::ReadAll(*once);
  EXPECT_EQ(simt::AllocationsToFail(), 0);
  for (const absl::Status& status : {session_answers.status, answers.status}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(" bytes needed at once"));
  }
  EXPECT_TRUE(engine.sessions().Get(id, "")->damaged_at.has_value());
  auto stream = std::make_shared<engine::TokenStream>(1000);
  const absl::Status again = engine.Submit(turn, stream);
  EXPECT_EQ(again.code(), absl::StatusCode::kDataLoss) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("the device had no memory for a step at"));
  EXPECT_EQ(served.Run(Short()).of[0].tokens, right);
  EXPECT_EQ(engine.Stats().sessions_active, 0);
}

// Includes draft tokens, which need memory to be undone.
TEST_F(NoMemoryForAStep, WhicheverOfItsBuffersHasNone) {
  engine::GenerateRequest request = engine::test::SampleRequest({1, 2, 3, 1, 2, 3, 1, 2}, 24);
  for (const int32_t token : {1, 2, 3}) request.sampling.logit_bias[token] = 60;
  request.output.speculation = engine::Speculation::kNgram;
  const engine::test::Answers right = Served(*model_).Run(request);
  ASSERT_TRUE(right.status.ok()) << right.status;
  EXPECT_GT(right.of[0].finished->usage.drafted_tokens, 0);
  int n_failed = 0;
  for (;; ++n_failed) {
    Served served(*model_);
    simt::FailAllocations(1, n_failed);
    const absl::Status status = served.Run(request).status;
    if (simt::AllocationsToFail() > 0) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << n_failed;
    EXPECT_EQ(served.Run(request).of[0].tokens, right.of[0].tokens) << n_failed;
    EXPECT_EQ(served.engine.Stats().state_bytes_reserved, 0u);
  }
  EXPECT_GE(n_failed, 3);
}

TEST_F(NoMemoryForAStep, AStepWithoutItsGraphIsTheSame) {
  const std::vector<int32_t> right = Served(*model_).Run(Short()).of[0].tokens;
  simt::FailGraphs(2);
  EXPECT_EQ(Served(*model_).Run(Short()).of[0].tokens, right);
  simt::FailGraphLaunches(2);
  EXPECT_EQ(Served(*model_).Run(Short()).of[0].tokens, right);
}

}  // namespace
}  // namespace ovq::kernels::test
