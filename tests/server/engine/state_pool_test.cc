#include "server/engine/common/state_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine {
namespace {

using testing::HasSubstr;

// Number of bytes in [base, base + bytes) that may be read and written.
size_t WritableBytes(const std::byte* base, size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  const auto begin = reinterpret_cast<uintptr_t>(base);
  size_t writable = 0;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, mode) != 3) continue;
    if (mode[0] != 'r' || mode[1] != 'w') continue;
    from = std::max(from, begin);
    to = std::min(to, begin + bytes);
    if (from < to) writable += to - from;
  }
  return writable;
}

size_t ResidentBytes(std::byte* base, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kernels::kHostPageBytes);
  EXPECT_EQ(mincore(base, bytes, pages.data()), 0);
  size_t resident = 0;
  for (unsigned char page : pages) resident += (page & 1) * kernels::kHostPageBytes;
  return resident;
}

class StatePoolTest : public testing::Test {
 protected:
  test::FakeModel model_{{.with_text = false, .full_attention = true}};
  const model::StateLayout& layout_ = model_.layout();
  std::unique_ptr<kernels::DeviceContext> context_ =
      kernels::test::MakeContext(kernels::Device::kCpu);
};

TEST_F(StatePoolTest, CommitsWhatTheLayoutSaysAndNoMore) {
  StatePool pool(size_t{1} << 24, *context_);
  StateHandle state = *pool.Acquire(layout_, 512, size_t{1} << 20);
  std::vector<unsigned char> written(layout_.virtual_bytes() / kernels::kHostPageBytes);
  for (int64_t position : {0, 1, 4, 63, 64, 65, 200, 1000, 1001, 4000, 4096}) {
    const size_t before = state.committed_bytes;
    pool.Grow(state, position);
    ASSERT_EQ(state.committed_bytes, layout_.bytes_at(position, 512)) << position;
    EXPECT_EQ(pool.committed_bytes(), state.committed_bytes);
    EXPECT_EQ(WritableBytes(state.base, layout_.virtual_bytes()), state.committed_bytes);
    EXPECT_LE(ResidentBytes(state.base, layout_.virtual_bytes()), before) << "nothing touched yet";
    for (const kernels::StateExtent& extent : layout_.extents_at(position, 512)) {
      for (size_t page = 0; page < extent.bytes; page += kernels::kHostPageBytes) {
        std::byte& first = state.base[extent.offset + page];
        unsigned char& seen = written[(extent.offset + page) / kernels::kHostPageBytes];
        ASSERT_EQ(static_cast<unsigned char>(first), seen) << "zero when new, kept when old";
        seen = 1;
        first = std::byte{1};
      }
    }
    EXPECT_EQ(ResidentBytes(state.base, layout_.virtual_bytes()), state.committed_bytes);
  }
  pool.Release(state);
  EXPECT_EQ(state.base, nullptr);
  EXPECT_EQ(pool.committed_bytes(), 0u);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
  EXPECT_EQ(pool.sessions(), 0);
}

TEST_F(StatePoolTest, BudgetIsExact) {
  const size_t cap = layout_.bytes_cap(256);
  StatePool pool(2 * cap + 100, *context_);
  StateHandle a = *pool.Acquire(layout_, 256, cap);
  StateHandle b = *pool.Acquire(layout_, 256, cap);
  EXPECT_EQ(pool.free_bytes(), 100u);
  const absl::StatusOr<StateHandle> c = pool.Acquire(layout_, 256, cap);
  EXPECT_EQ(c.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(c.status().message()), HasSubstr(std::to_string(cap) + " bytes needed"));
  EXPECT_THAT(std::string(c.status().message()), HasSubstr("100 of"));
  pool.ShrinkReservation(a, a.committed_bytes);
  EXPECT_EQ(pool.free_bytes(), 100 + cap - a.committed_bytes);
  pool.Release(b);
  pool.Release(a);
  EXPECT_EQ(pool.free_bytes(), pool.budget_bytes());
}

}  // namespace
}  // namespace ovq::engine
