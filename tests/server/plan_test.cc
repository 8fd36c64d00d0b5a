#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "server/loading.h"
#include "tests/bench/kvm_paper_model.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"

namespace ovq::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Options ForModel(const std::string& name) {
  Options options;
  options.model = ModelsFolder() + "/" + name;
  options.state_memory_bytes = size_t{64} << 20;
  return options;
}

// Returns the cells of the table, without the column names and the sentence after the table.
std::vector<std::vector<std::string>> Rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text.substr(text.find("max_centroids")));
  std::string line, cell;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.starts_with("weights of")) {
    std::istringstream cells(line);
    rows.emplace_back();
    while (cells >> cell) rows.back().push_back(cell);
  }
  return rows;
}

// The plan must agree with sizes computed by hand from the loaded model's layout.
TEST(Plan, IsWhatTheLoadedModelReserves) {
  for (const char* name : {"python-bytes", "basic-icr-small-full", "basic-icr-small-vq"}) {
    Options options = ForModel(name);
    options.max_context = 8192;
    options.plan_tokens = {1000, 8192};
    options.engine.max_sessions = 50;
    const absl::StatusOr<std::string> text = PlanText(options);
    ASSERT_TRUE(text.ok()) << text.status();

    auto context = kernels::DeviceContext::Make(kernels::Device::kCpu, 1);
    ASSERT_TRUE(context.ok());
    const model::ModelOptions model_options = {
        .compute_dtype = std::nullopt,
        .state_dtype = kernels::DType::kBF16,
        .limits = {.max_slot_cap = options.engine.max_slot_cap, .max_unbounded_tokens = 8192}};
    const auto model = model::LanguageModel::Load(options.model, model_options, **context);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT(*text, HasSubstr(absl::StrCat("\nweights of ", (*model)->weight_count().bytes,
                                              " bytes in memory; an embedding of ")));
    const model::StateLayout& layout = (*model)->layout();
    const int64_t cap = (*model)->layout().default_slot_cap();
    const auto row = [&](const std::string& tokens, size_t bytes, const std::string& kv,
                         int64_t position) {
      const size_t fit = (size_t{64} << 20) / bytes;
      return std::vector<std::string>{std::to_string(cap),
                                      tokens,
                                      std::to_string(bytes),
                                      std::to_string(fit),
                                      std::to_string(std::min<size_t>(fit, 50)),
                                      kv,
                                      position == 0 || !layout.has_slot_cap()
                                          ? "-"
                                          : std::to_string(layout.LiveSlotsAt(position, cap))};
    };
    const size_t kv = (*model)->full_kv_bytes_per_token();
    EXPECT_THAT(
        Rows(*text),
        ElementsAre(row("any", layout.bytes_cap(cap), "-", 0),
                    row("1000", layout.bytes_at(1000, cap), std::to_string(1000 * kv), 1000),
                    row("8192", layout.bytes_at(8192, cap), std::to_string(8192 * kv), 8192)))
        << name;
    EXPECT_THAT(*text, HasSubstr("beside them in the host's memory: 8388608 bytes for earlier "
                                 "states of sessions, 8388608 for what prompts begin with"));
  }
}

// An int8 slot has a scale, one byte beside its channels.
TEST(Plan, Int8StatesTakeHalfOfBf16) {
  Options options = ForModel("python-bytes");
  options.plan_tokens = {4096};
  options.state_dtype = kernels::DType::kBF16;
  const absl::StatusOr<std::string> bf16 = PlanText(options);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  options.state_dtype = kernels::DType::kI8;
  const absl::StatusOr<std::string> int8 = PlanText(options);
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_THAT(*int8, HasSubstr("states in i8 on cpu"));
  const auto number = [](const std::string& text, size_t row, size_t column) {
    return std::stod(Rows(text)[row][column]);
  };
  EXPECT_NEAR(number(*int8, 0, 2) / number(*bf16, 0, 2), 0.53, 0.03);
  EXPECT_NEAR(number(*int8, 1, 5) / number(*bf16, 1, 5), 0.51, 0.02);
}

TEST(Plan, SaysWhichLayersKeepOtherTypes) {
  Options options = ForModel("basic-icr-small-gdn");
  for (const kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kI8}) {
    options.state_dtype = dtype;
    const absl::StatusOr<std::string> text = PlanText(options);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, HasSubstr("\ngated_delta_net layers keep their states in f32\n"));
    EXPECT_THAT(*text, Not(HasSubstr("sliding_attention")));
  }
}

TEST(Plan, CapsAsAsked) {
  Options options = ForModel("python-bytes");
  options.plan_slot_caps = {128, 4096};
  options.plan_tokens = {1 << 20};
  const absl::StatusOr<std::string> text = PlanText(options);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto rows = Rows(*text);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0][0], "128");
  EXPECT_EQ(rows[3][0], "4096");
  EXPECT_LT(std::stol(rows[0][2]), std::stol(rows[2][2]));
}

// Sizes that no machine has are refused with their field's name or reported exactly; they never
// wrap.
TEST(Plan, ExtremeSizes) {
  Options options = ForModel("basic-icr-small-full");
  nlohmann::json config =
      nlohmann::json::parse(model::test::ReadBytes(options.model + "/config.json"));
  config["num_hidden_layers"] = 1024;
  config["layer_types"] = std::vector<std::string>(1024, "full_attention");
  config["num_attention_heads"] = config["num_key_value_heads"] = 4096;
  config["head_dim"] = config["value_head_dim"] = 1024;
  config.erase("ovq");
  const model::test::TempFolder folder;
  folder.Write("config.json", config.dump());
  options.model = folder.path();
  options.plan_tokens = {1 << 20};
  const absl::StatusOr<std::string> text = PlanText(options);
  ASSERT_TRUE(text.ok()) << text.status();
  // Keys and values are float32 or bfloat16, according to the config.
  const size_t each = config["torch_dtype"] == "bfloat16" ? 2 : 4;
  EXPECT_EQ(Rows(*text)[1][2], std::to_string((each * 1024 * 4096 * 1024 * 2) << 20));
  EXPECT_EQ(Rows(*text)[1][3], "0");
  options.max_context = (int64_t{1} << 31) - 1;
  options.plan_tokens = {options.max_context};
  const absl::Status status = PlanText(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: num_hidden_layers"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2147483647 tokens"));
}

// A token reads two of six experts of 3 x 16 x 40 weights in each of four layers. They have too few
// outputs for int8.
TEST(Plan, ExpertsThatATokenReads) {
  Options options = ForModel("");
  options.model = GoldenFolder() + "/published/qwen3_5_moe-hub";
  options.weights = kernels::WeightType::kInt8;
  const absl::StatusOr<std::string> text = PlanText(options);
  ASSERT_TRUE(text.ok()) << text.status();
  const size_t all = 4 * 6 * 3 * 16 * 40, read = all / 3;
  const auto count = model::LanguageModel::CountWeights(model::LoadConfig(options.model).value(),
                                                        {kernels::DType::kF32, options.weights});
  EXPECT_THAT(*text, HasSubstr(absl::StrCat(
                         "\nweights of ", count.bytes, " bytes in memory, of which a token reads ",
                         count.bytes - 4 * (all - read), "; experts of ", all,
                         " parameters, of which a token reads ", read, "; an embedding of ")));
}

// The KVM paper's law for sqrt16, floor(16 sqrt(t)) slots (2,896 at 32,768 tokens), for its
// published 120M shape, from the config alone.
TEST(Plan, RowsOfAKvmCheckpoint) {
  const model::test::TempFolder folder;
  folder.Write("config.json", bench::KvmPaperConfig({12, 768, 6, 1.0}, "kvm_sqrt16").dump());
  Options options = ForModel("");
  options.model = folder.path();
  options.state_memory_bytes = size_t{8} << 30;
  options.plan_slot_caps = {1000, 65536};
  options.plan_tokens = {512, 768, 4096, 32768};
  const absl::StatusOr<std::string> text = PlanText(options);
  ASSERT_TRUE(text.ok()) << text.status();
  std::vector<std::string> live;
  for (const auto& row : Rows(*text)) live.push_back(row.back());
  EXPECT_THAT(live,
              ElementsAre("-", "256", "443", "1000", "1000", "-", "256", "443", "1024", "2896"));
}

// Bytes of a layer of the OVQ paper's 77M shape, from the definition of its state: matrices and the
// newest inputs of the convolution, all float32, of one size at every position. Each is a multiple
// of the rounding of a layer's part, and eight of them are a multiple of a page.
TEST(Plan, RecurrentModelsAreOfOneSizeForEver) {
  const struct {
    const char *type, *section;
    nlohmann::json fields;
    int64_t layer_bytes;
  } cases[] = {
      {"gated_delta_net",
       "gdn",
       {{"num_heads", 3}, {"head_dim", 128}, {"value_head_dim", 256}, {"conv_size", 4}},
       4 * (3 * 128 * 256 + 3 * (2 * 3 * 128 + 3 * 256))},
      {"mamba2",
       "mamba2",
       {{"num_heads", 12}, {"head_dim", 64}, {"state_size", 64}},
       4 * (12 * 64 * 64 + 3 * (12 * 64 + 2 * 64))},
      {"mesa_net",
       "mesa_net",
       {{"num_heads", 6}, {"head_dim", 128}},
       4 * (2 * 6 * 128 * 128 + 3 * 2 * 6 * 128)},
      {"lattice",
       "lattice",
       {{"num_heads", 6}, {"num_slots", 128}, {"value_head_dim", 128}},
       4 * (6 * 128 * 128 + 3 * 6 * 128)},
  };
  for (const auto& c : cases) {
    const model::test::TempFolder folder;
    const nlohmann::json config = {{"model_type", "ovq_hybrid"},
                                   {"vocab_size", 10000},
                                   {"hidden_size", 768},
                                   {"num_hidden_layers", 8},
                                   {"intermediate_size", 2304},
                                   {"hidden_act", "silu"},
                                   {"rms_norm_eps", 1e-5},
                                   {"tie_word_embeddings", false},
                                   {"layer_types", std::vector<std::string>(8, c.type)},
                                   {c.section, c.fields}};
    folder.Write("config.json", config.dump());
    Options options = ForModel("");
    options.model = folder.path();
    options.plan_tokens = {1, 4096, 1 << 20};
    const absl::StatusOr<std::string> text = PlanText(options);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto rows = Rows(*text);
    ASSERT_EQ(rows.size(), 4u) << c.type;
    for (const auto& row : rows) EXPECT_EQ(row[2], std::to_string(8 * c.layer_bytes)) << c.type;
  }
}

// A GPU's pages are large, so its sessions take more memory; the plan needs no GPU.
TEST(Plan, ForAGpuThatIsNotThere) {
  Options options = ForModel("python-bytes");
  options.device = kernels::Device::kCuda;
  const absl::StatusOr<std::string> text = PlanText(options);
  ASSERT_TRUE(text.ok()) << text.status();
  for (const auto& row : Rows(*text)) EXPECT_EQ(std::stol(row[2]) % (2 << 20), 0);
}

TEST(CheckConfig, SaysWhatHoldsAndWhatIsWrong) {
  CommandLine line;
  line.options = ForModel("python-bytes");
  line.settings = {{"max-queue", "9", "--max-queue"}, {"threads", "0", kDefaultOrigin}};
  EXPECT_EQ(CheckConfig(line).value_or(""),
            "# --max-queue\nmax-queue = 9\n# default: threads = 0\n");
  line.options.model = "/nonexistent/model";
  EXPECT_THAT(std::string(CheckConfig(line).status().message()), HasSubstr("/nonexistent/model"));
}

}  // namespace
}  // namespace ovq::server
