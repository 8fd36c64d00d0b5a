// A system that gives no memory for states, though their budget has room: the call that needs it
// ends, and the others go on.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "server/engine/state_pool.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::test {
namespace {

// Of the process: memory that may be written and is its own.
size_t DataBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::strtoull(line.c_str() + 7, nullptr, 10) * 1024;
  }
  return 0;
}

// While it lives, the system gives the process `bytes` more.
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

EngineOptions Options() {
  EngineOptions options;
  options.max_batch_tokens = 1 << 20;
  options.prefix_memory_bytes = 0;
  return options;
}

TEST(NoMemory, AStateThatCannotGrowStaysAsItWas) {
  FakeModel model(kModel);
  const std::unique_ptr<DeviceContext> context = MakeContext(Device::kCpu);
  StatePool pool(size_t{1} << 30, *context);
  const StateLayout& layout = model.layout();
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

TEST(NoMemory, EndsTheCallThatNeedsItAndNoOther) {
  TestEngine engine(Options(), kModel);
  const Answers alone = engine.Run(Request({1, 2, 3}, 50));
  const std::string id = engine.NewSession().id;
  ASSERT_TRUE(engine.Run(Turn(id, {1, 2, 3}, 5)).status.ok());
  const std::vector<std::byte> state = State(engine, id);
  const std::vector<int32_t> prompt = SomeTokens(kLong, 1);

  const int64_t step = engine.model().gate().steps() + 1;
  engine.model().gate().CloseAt(step);
  const auto other = engine.Start(Request({1, 2, 3}, 50));
  engine.model().gate().AwaitEntered(step);
  const auto once = engine.Start(Request(prompt, 5)), turn = engine.Start(Turn(id, prompt, 5));
  {
    const MemoryLimit limit(kLeft);
    engine.model().gate().Open();
    for (const auto& stream : {once, turn}) {
      const Answers answers = ReadAll(*stream);
      EXPECT_TRUE(absl::IsResourceExhausted(answers.status)) << answers.status;
    }
    EXPECT_EQ(ReadAll(*other).of[0].tokens, alone.of[0].tokens);
  }
  EXPECT_EQ(engine->GetSession(id, "")->position, 8);
  EXPECT_EQ(State(engine, id), state);
  EXPECT_TRUE(engine.Run(Turn(id, {4}, 5)).status.ok());
  EXPECT_EQ(engine.SettledStats().sessions_active, 0);
}

}  // namespace
}  // namespace ovq::test
