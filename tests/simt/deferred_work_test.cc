// Where the host waits for the device: kernels and copies run when the host waits for them, so
// memory of the host that changes too early shows in the results.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/common/state_memory.h"
#include "server/engine/engine.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

TEST(DeferredWork, FindsWhatWasStaged) {
  constexpr size_t kBytes = 1000, kTimes = 3;
  const simt::DeferWork deferred;
  const auto context = MakeContext(Device::kCuda);
  StateMemory memory(*context);
  for (const Staged kind : {Staged::kBatch, Staged::kReading}) {
    const Buffer sent(Device::kCuda, kTimes * kBytes);
    std::vector<std::byte> expected, got(kTimes * kBytes);
    for (size_t i = 0; i < kTimes; ++i) {
      std::fill_n(context->Staging(kBytes, kind), kBytes, std::byte(i + 1));
      expected.insert(expected.end(), kBytes, std::byte(i + 1));
      memory.Copy(sent.as<std::byte>() + i * kBytes, context->SendStaging(kBytes, kind), kBytes);
    }
    context->CopyToHost(got.data(), sent.as<void>(), got.size());
    EXPECT_EQ(got, expected);
  }
}

// Answers of several requests at once whose drafts are undone by reading the accepted tokens again:
// one forward pass for each of them, without results that the host would wait for.
std::vector<std::vector<int32_t>> AnswersWithDrafts(const model::LanguageModel& model) {
  engine::Engine engine({engine::test::Served(model), engine::EngineOptions(), {}},
                        MakeContext(Device::kCuda));
  std::vector<std::shared_ptr<engine::TokenStream>> streams;
  for (int32_t i = 0; i < 4; ++i) {
    engine::GenerateRequest request =
        engine::test::SampleRequest({1 + i, 2, 3, 1 + i, 2, 3, 1 + i, 2}, 12, /*seed=*/i + 1);
    for (const int32_t token : {1 + i, 2, 3}) request.sampling.logit_bias[token] = 60;
    request.output.speculation = engine::Speculation::kNgram;
    streams.push_back(std::make_shared<engine::TokenStream>(1000));
    EXPECT_TRUE(engine.Submit(std::move(request), streams.back()).ok());
  }
  while (engine.RunIteration()) {
  }
  std::vector<std::vector<int32_t>> tokens;
  int64_t n_undone = 0;
  for (const auto& stream : streams) {
    const engine::test::Answers answers = engine::test::ReadAll(*stream);
    EXPECT_TRUE(answers.status.ok()) << answers.status;
    const engine::Usage usage = answers.of[0].finished->usage;
    n_undone += usage.drafted_tokens - usage.accepted_tokens;
    tokens.push_back(answers.of[0].tokens);
  }
  EXPECT_GT(n_undone, 1);
  return tokens;
}

TEST(DeferredWork, LeavesAnswersWithDraftsAsTheyAre) {
  const auto loader = MakeContext(Device::kCuda);
  const auto model = model::LanguageModel::Load(GoldenFolder() + "/native/sw-gdn", {}, *loader);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<std::vector<int32_t>> right = AnswersWithDrafts(**model);
  const simt::DeferWork deferred;
  EXPECT_EQ(AnswersWithDrafts(**model), right);
}

}  // namespace
}  // namespace ovq::kernels::test
