// Configs with the largest accepted numbers: their sizes are computed or refused, never overflowed.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "model/load_config.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

// Collects the integers of a config.
void Integers(nlohmann::json& json, std::vector<nlohmann::json*>& found) {
  for (nlohmann::json& value : json) {
    if (value.is_number_integer()) found.push_back(&value);
    if (value.is_object()) Integers(value, found);
  }
}

absl::StatusOr<ModelConfig> Read(const TempFolder& folder, const nlohmann::json& json) {
  folder.Write("config.json", json.dump());
  return LoadConfig(folder.path());
}

// Sets one field after another to the largest of some numbers that the config then still allows.
nlohmann::json Extreme(const TempFolder& folder, nlohmann::json json) {
  std::vector<nlohmann::json*> fields;
  Integers(json, fields);
  for (nlohmann::json* field : fields) {
    const nlohmann::json before = *field;
    for (const int bits : {31, 24, 20, 16, 12, 10, 8}) {
      *field = (int64_t{1} << bits) - (bits == 31 ? 1 : 0);
      if (Read(folder, json).ok()) break;
      *field = before;
    }
  }
  return json;
}

TEST(ExtremeConfig, SizesAreToldOrRefused) {
  constexpr StateLimits kLimits = {.max_slot_cap = kernels::kMaxSlotCap,
                                   .max_unbounded_tokens = INT32_MAX};
  int told = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenFolder() + "/native")) {
    const std::string path = entry.path().string() + "/config.json";
    const TempFolder folder;
    const nlohmann::json json = Extreme(folder, nlohmann::json::parse(ReadBytes(path)));
    const absl::StatusOr<ModelConfig> config = Read(folder, json);
    ASSERT_TRUE(config.ok()) << path << ": " << config.status();
    const absl::StatusOr<StateLayout> layout = PlanStateLayout(
        *config, kernels::DType::kF32, kLimits, kernels::Device::kCpu, kernels::kHostPageBytes);
    EXPECT_LE(FullKvBytesPerToken(*config, kernels::DType::kF32), size_t{1} << 62) << path;
    if (!layout.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(layout.status())) << layout.status();
      continue;
    }
    ++told;
    size_t before = 0;
    for (const int64_t position :
         {int64_t{1}, int64_t{1000}, int64_t{1} << 24, int64_t{INT32_MAX}}) {
      const size_t bytes = layout->bytes_at(position, kernels::kMaxSlotCap);
      EXPECT_GE(bytes, before) << path << " at " << position;
      before = bytes;
    }
    EXPECT_GT(before, 0u) << path;
    EXPECT_LE(before, layout->bytes_cap(kernels::kMaxSlotCap)) << path;
    EXPECT_LE(layout->bytes_cap(kernels::kMaxSlotCap), layout->virtual_bytes()) << path;
  }
  EXPECT_GT(told, 10);
}

}  // namespace
}  // namespace ovq::model::test
