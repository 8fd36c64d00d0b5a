// The system has no memory for states, though the budget does: the call that needs it fails, and
// others continue.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "server/engine/common/state_pool.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

// Bytes of the process's private writable memory.
size_t DataBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::strtoull(line.c_str() + 7, nullptr, 10) * 1024;
  }
  return 0;
}

// Limits the process to `bytes` more memory during its lifetime.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_DATA, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = DataBytes() + bytes;
    EXPECT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_ = {};
};

constexpr size_t kLeft = size_t{16} << 20;
constexpr int64_t kLong = 800'000;  // tokens: 50 MB of state
constexpr FakeModelOptions kModel = {.full_attention = true, .max_unbounded_tokens = 1 << 20};

EngineOptions WholePrompts() {
  EngineOptions options;
  options.max_batch_tokens = 1 << 20;
  options.prefix_memory_bytes = 0;
  return options;
}

class NoMemory : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer without memory ends the process";
#endif
  }
};

TEST_F(NoMemory, AStateThatCannotGrowStaysAsItWas) {
  FakeModel model(kModel);
  const std::unique_ptr<kernels::DeviceContext> context =
      kernels::test::MakeContext(kernels::Device::kCpu);
  StatePool pool(size_t{1} << 30, *context);
  const model::StateLayout& layout = model.layout();
  StateHandle state = *pool.Acquire(layout, 256, layout.bytes_cap(256));
  pool.Grow(state, 100);
  const size_t before = pool.committed_bytes();
  {
    const MemoryLimit limit(kLeft);
    EXPECT_TRUE(absl::IsResourceExhausted(pool.Commit(state, kLong)));
    EXPECT_EQ(state.position, 100);
    EXPECT_EQ(pool.committed_bytes(), before);
    EXPECT_TRUE(pool.Commit(state, 200).ok());
  }
  EXPECT_TRUE(pool.Commit(state, kLong).ok());
  EXPECT_EQ(state.committed_bytes, layout.bytes_at(kLong, 256));
  const absl::StatusOr<StateHandle> clone = pool.Clone(state, layout.bytes_cap(256));
  EXPECT_TRUE(clone.ok()) << clone.status();
  pool.Grow(state, kLong);
  {
    const MemoryLimit limit(kLeft);
    EXPECT_TRUE(absl::IsResourceExhausted(pool.Clone(state, layout.bytes_cap(256)).status()));
  }
  EXPECT_EQ(pool.sessions(), 2);
  StateHandle copy = *clone;
  pool.Release(copy);
  pool.Release(state);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST_F(NoMemory, EndsTheCallThatNeedsItAndNoOther) {
  TestEngine engine(WholePrompts(), kModel);
  const Answers alone = engine.Run(SampleRequest({1, 2, 3}, 50));
  const std::string id = engine.NewSession().id;
  ASSERT_TRUE(engine.Run(Turn(id, {1, 2, 3}, 5)).status.ok());
  const std::vector<std::byte> state = State(engine, id);
  const std::vector<int32_t> prompt = SomeTokens(kLong, 1);

  const int64_t step = engine.model().gate().steps() + 1;
  engine.model().gate().CloseAt(step);
  const auto other = engine.Start(SampleRequest({1, 2, 3}, 50));
  engine.model().gate().AwaitEntered(step);
  const auto once = engine.Start(SampleRequest(prompt, 5)),
             turn = engine.Start(Turn(id, prompt, 5));
  {
    const MemoryLimit limit(kLeft);
    engine.model().gate().Open();
    for (const auto& stream : {once, turn}) {
      const Answers answers = ReadAll(*stream);
      EXPECT_TRUE(absl::IsResourceExhausted(answers.status)) << answers.status;
    }
    EXPECT_EQ(ReadAll(*other).of[0].tokens, alone.of[0].tokens);
  }
  EXPECT_EQ(engine->sessions().Get(id, "")->position, 8);
  EXPECT_EQ(State(engine, id), state);
  EXPECT_TRUE(engine.Run(Turn(id, {4}, 5)).status.ok());
  EXPECT_EQ(engine.SettledStats().sessions_active, 0);
}

// Runs iterations by hand, so that the limit applies to chosen ones. States begin with 23 MiB and
// grow by 16 MiB every 64 tokens.
class NoMemoryToGoBack : public NoMemory {
 protected:
  NoMemoryToGoBack() {
    SessionOptions options;
    options.prompt = SomeTokens(100, 1);
    options.slot_cap = 64;
    engine_.sessions().Create(options,
                              [this](absl::StatusOr<SessionInfo> info) { id_ = info->id; });
    RunAll();
  }
  void RunAll() {
    while (engine_.RunIteration()) {
    }
  }
  void Begin(uint64_t position) {
    told_ = absl::UnknownError("not told");
    engine_.sessions().Rewind(
        {.session_id = id_, .position = position}, nullptr,
        [this](const absl::StatusOr<RewindResult>& result) { told_ = result.status(); });
  }
  EngineConfig Config() {
    EngineOptions options;
    options.max_batch_tokens = 40;
    return {model_.Make(), options, {}};
  }

  FakeModel model_{{.full_attention = true, .max_unbounded_tokens = 256, .row_words = 1 << 16}};
  Engine engine_{Config(), kernels::test::MakeContext(kernels::Device::kCpu)};
  std::string id_;
  absl::Status told_;
};

TEST_F(NoMemoryToGoBack, LeavesASessionAsItIs) {
  Begin(50);
  {
    const MemoryLimit limit(size_t{8} << 20);
    RunAll();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(told_)) << told_;
  const SessionInfo info = engine_.sessions().Get(id_, "").value();
  EXPECT_EQ(info.position, 100);
  EXPECT_FALSE(info.busy);
  Begin(50);
  RunAll();
  EXPECT_TRUE(told_.ok()) << told_;
  EXPECT_EQ(engine_.sessions().Get(id_, "").value().position, 50);
}

TEST_F(NoMemoryToGoBack, NorToUndoThatEndsASession) {
  Begin(90);
  engine_.RunIteration();
  {
    const MemoryLimit limit(size_t{8}
                            << 20);  // it has consumed 40 tokens, and needs more from 64 on
    RunAll();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(told_)) << told_;
  EXPECT_TRUE(absl::IsNotFound(engine_.sessions().Get(id_, "").status()));
  RunAll();
  EXPECT_EQ(engine_.Stats().state_bytes_reserved, 0u);
  EXPECT_EQ(engine_.Stats().sessions_active + engine_.Stats().sessions_idle, 0);
}

}  // namespace
}  // namespace ovq::engine::test
