// Models of transformer_vq layers: several heads and fields that the fixture leaves at their
// defaults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/edited_model.h"
#include "tests/model/golden_util.h"

namespace ovq::model::test {
namespace {

constexpr char kName[] = "transformer-vq";
constexpr int kLayers = 6;
constexpr int kKeyDim = 16, kValueDim = 96, kWidth = 48, kCodes = 24, kMemLen = 12;

std::string Name(int layer, const char* leaf) {
  return absl::StrCat("model.layers.", layer, ".self_attn.", leaf);
}

std::vector<float> ReadFloats(const EditedModel& model, const std::string& tensor) {
  const std::string& bytes = model.tensors.at(tensor).second;
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  return {values, values + bytes.size() / sizeof(float)};
}

void Set(EditedModel& model, const std::string& tensor, const nlohmann::json& shape,
         const std::vector<float>& values) {
  model.tensors[tensor] = {shape, std::string(reinterpret_cast<const char*>(values.data()),
                                              values.size() * sizeof(float))};
}

// All logits of these tokens, fed at once.
std::vector<float> ComputeLogits(const EditedModel& edited, const std::vector<int32_t>& tokens) {
  const auto model = edited.Load();
  Check(model.ok(), Message(model.status()).c_str());
  Session session(**model, *edited.context, tokens, 2);
  session.Feed(session.remaining());
  return session.logits();
}

std::vector<int32_t> Tokens(int n, int seed) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) tokens[i] = (i * i * 7 + i * 31 + seed * 17) % 101;
  return tokens;
}

// Adds rows for a second head, different from the first's, before or after those of the first.
void AddHead(EditedModel& model, int layer, const char* leaf, const nlohmann::json& shape,
             bool first) {
  const std::vector<float> own = ReadFloats(model, Name(layer, leaf));
  std::vector<float> other(own.rbegin(), own.rend());
  std::vector<float> both = first ? other : own;
  both.insert(both.end(), (first ? own : other).begin(), (first ? own : other).end());
  Set(model, Name(layer, leaf), shape, both);
}

// A head whose output is unused leaves the other's unchanged, in either order.
TEST(TransformerVq, HeadsHaveTheirOwnWeights) {
  const EditedModel one(kName);
  const std::vector<int32_t> tokens = Tokens(150, 1);
  const std::vector<float> expected = ComputeLogits(one, tokens);
  for (bool first : {false, true}) {
    EditedModel two = one.Copy();
    two.config["transformer_vq"]["num_heads"] = 2;
    for (int i = 0; i < kLayers; ++i) {
      for (const char* leaf : {"q_proj.weight", "k_proj.weight", "r_proj.weight"}) {
        AddHead(two, i, leaf, {2 * kKeyDim, kWidth}, first);
      }
      AddHead(two, i, "v_proj.weight", {2 * kValueDim, kWidth}, first);
      AddHead(two, i, "g_proj.weight", {2 * kValueDim, kWidth}, first);
      AddHead(two, i, "xl_u", {2, kKeyDim}, first);
      AddHead(two, i, "xl_v", {2, kKeyDim}, first);
      AddHead(two, i, "codebook", {2, kCodes, kKeyDim}, first);
      const std::vector<float> own = ReadFloats(one, Name(i, "o_proj.weight"));
      std::vector<float> output(2 * own.size(), 0.0f);
      for (int row = 0; row < kWidth; ++row) {
        std::copy_n(own.begin() + row * kValueDim, kValueDim,
                    output.begin() + (2 * row + (first ? 1 : 0)) * kValueDim);
      }
      Set(two, Name(i, "o_proj.weight"), {kWidth, 2 * kValueDim}, output);
    }
    const std::vector<float> logits = ComputeLogits(two, tokens);
    ASSERT_EQ(logits.size(), expected.size());
    // Sums have another order; tolerance as in fixtures_test.cc.
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 3e-5f) << i;
  }
}

// Tokens that left the windows of all layers act through the means alone.
TEST(TransformerVq, WithoutMeansOldTokensAreForgotten) {
  constexpr int kReach = kLayers * kMemLen, kTokens = 200;
  std::vector<int32_t> one = Tokens(kTokens, 1), other = one;
  for (int i = 0; i < kTokens - 1 - kReach; ++i) other[i] = (other[i] + 1 + i % 50) % 101;
  EditedModel model(kName);
  const auto last = [&](const std::vector<int32_t>& tokens) {
    const std::vector<float> logits = ComputeLogits(model, tokens);
    return std::vector<float>(logits.end() - 101, logits.end());
  };
  EXPECT_NE(last(one), last(other));
  model.config["transformer_vq"]["agg_cache"] = false;
  EXPECT_EQ(last(one), last(other));
  other[kTokens - 1 - kReach] = (other[kTokens - 1 - kReach] + 1) % 101;
  EXPECT_NE(last(one), last(other));
}

// While no token has left the window there are no means.
TEST(TransformerVq, MeansBeginBehindTheWindow) {
  EditedModel model(kName);
  const std::vector<int32_t> tokens = Tokens(kMemLen + 2, 3);
  const std::vector<float> with = ComputeLogits(model, tokens);
  model.config["transformer_vq"]["agg_cache"] = false;
  const std::vector<float> without = ComputeLogits(model, tokens);
  float within = 0, behind = 0;
  for (size_t i = 0; i < with.size(); ++i) {
    float& apart = i < with.size() - 101 ? within : behind;
    apart = std::max(apart, std::abs(with[i] - without[i]));
  }
  EXPECT_LE(within, 3e-5f);
  EXPECT_GT(behind, 1e-2f);
}

TEST(TransformerVq, NeedsNoAttentionHeads) {
  EditedModel model(kName);
  model.config["transformer_vq"]["block_len"] = 512;
  const auto loaded = model.Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->full_kv_bytes_per_token(), 0u);
  EXPECT_FALSE((*loaded)->layout().has_slot_cap());
  EXPECT_EQ((*loaded)->layout().bytes_at(1, 2), (*loaded)->layout().bytes_at(1 << 30, 2));
}

TEST(TransformerVq, NamesWhatDoesNotFit) {
  EditedModel model(kName);
  const auto expect = [&](const std::string& text) {
    model.ExpectError(absl::StatusCode::kInvalidArgument, text);
  };
  nlohmann::json& section = model.config["transformer_vq"];
  const nlohmann::json before = section;
  section["codebok_size"] = 24;
  expect("transformer_vq.codebok_size: unknown field");
  section = before;
  section["mem_len"] = 0;
  expect("transformer_vq.mem_len: expected an integer in [1, ");
  section = before;
  section["pe_lam"] = 0;
  expect("transformer_vq.pe_lam: expected a number");
  section = before;
  section["codebook_size"] = 25;
  expect("model.layers.0.self_attn.codebook: expected [1, 25, 16], got [1, 24, 16]");
  section.erase("value_head_dim");
  expect("transformer_vq.value_head_dim: expected an integer");
  model.config.erase("transformer_vq");
  expect("transformer_vq.num_heads: expected an integer");
}

}  // namespace
}  // namespace ovq::model::test
