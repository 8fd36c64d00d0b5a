#include "kernels/common/weight_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Bytes of this process's memory that have asked for huge pages.
size_t BytesOnHugePages() {
  std::ifstream maps("/proc/self/smaps");
  size_t kilobytes = 0, all = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Size:")) kilobytes = std::stoul(line.substr(5));
    if (line.starts_with("VmFlags:") && line.find(" hg") != std::string::npos) all += kilobytes;
  }
  return all * 1024;
}

bool HasHugePages() {
  return std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled");
}

TEST(WeightMemoryTest, PiecesKeepWhatIsWritten) {
  std::vector<std::pair<std::shared_ptr<std::byte>, size_t>> pieces;
  for (const size_t bytes : {size_t{1}, kMiB / 4, 3 * kMiB + 1, 40 * kMiB, 31 * kMiB, kMiB}) {
    pieces.emplace_back(WeightMemory(bytes), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().first.get()) % 256, 0u);
    std::memset(pieces.back().first.get(), static_cast<int>(pieces.size()), bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [memory, bytes] = pieces[i];
    EXPECT_EQ(memory.get()[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(memory.get()[bytes - 1], static_cast<std::byte>(i + 1));
  }
}

TEST(WeightMemoryTest, RoomIsUsedAgain) {
  const std::shared_ptr<std::byte> first = WeightMemory(kMiB);
  std::byte* const second = WeightMemory(kMiB).get();  // gone at once
  EXPECT_EQ(WeightMemory(kMiB).get(), second);
  EXPECT_EQ(second, first.get() + kMiB);
}

TEST(WeightMemoryTest, WeightsOfProductsAreOnHugePages) {
  if (!HasHugePages()) GTEST_SKIP() << "this system has none";
  constexpr int64_t kIn = 1024, kOut = 2048;
  const auto context = test::MakeContext(Device::kCpu);
  const std::vector<float> weights = test::RandomNormal(kIn * kOut, 1);
  const size_t before = BytesOnHugePages();
  const auto packed = test::Rounded(weights);
  const TensorView view = {const_cast<BF16*>(packed.data()), DType::kBF16, {kOut, kIn}};
  const auto linear = Linear::Make({&view, 1}, DType::kBF16, *context);
  ASSERT_TRUE(linear.ok());
  EXPECT_GE(BytesOnHugePages(), before + 4 * kMiB);
}

}  // namespace
}  // namespace ovq::kernels
