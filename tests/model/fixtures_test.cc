// Golden models against logits computed in float64, at every position and for many splits into
// batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "model/weights.h"
#include "tests/model/golden_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

// Float32 sums of up to 96 products through four layers stay within 5e-6 of the float64 logits, and
// within 1e-5 for recurrent layers, as measured; the factor 3 leaves room for the summation orders
// of other instruction sets.
constexpr float kTolerance = 3e-5f;

struct Case {
  const char* name;
  kernels::Device device;
};

class Fixtures : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string missing = kernels::test::WhyNoDevice(GetParam().device);
    if (!missing.empty()) GTEST_SKIP() << missing;
    golden_ = LoadGolden(GetParam().name);
    context_ = BoundContext(GetParam().device);
    model_ = LoadModel(golden_.folder, *context_);
    expected_ = OpenSafetensors(golden_.folder + "/expected.safetensors").value();
  }

  int64_t centroids() const { return std::max<int64_t>(model_->layout().default_slot_cap(), 2); }

  void ExpectLogits(const Session& session, const std::string& tensor) {
    const kernels::TensorView view = View(expected_, tensor);
    ASSERT_EQ(session.logits().size(), static_cast<size_t>(view.shape.elements()));
    float worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < session.logits().size(); ++i) {
      const float error = std::abs(session.logits()[i] - view.as<float>()[i]);
      if (error <= worst) continue;
      worst = std::isnan(error) ? INFINITY : error;
      where = i;
    }
    EXPECT_LE(worst, kTolerance) << tensor << " at position "
                                 << where / static_cast<size_t>(model_->config().vocab_size);
  }

  // Feeds sequence i in batches of these lengths, and the rest in one more.
  void ExpectSplit(size_t i, const std::vector<int64_t>& lengths) {
    Session session(*model_, *context_, golden_.sequences[i], centroids());
    for (int64_t n : lengths) session.Feed(n);
    if (session.remaining() > 0) session.Feed(session.remaining());
    const bool by_token = lengths.size() == golden_.sequences[i].size();
    ExpectLogits(session, by_token ? golden_.by_token[i] : golden_.whole[i]);
  }

  Golden golden_;
  std::unique_ptr<kernels::DeviceContext> context_;
  std::unique_ptr<LanguageModel> model_;
  SafetensorsFile expected_;
};

TEST_P(Fixtures, Whole) {
  for (size_t i = 0; i < golden_.sequences.size(); ++i) ExpectSplit(i, {});
}

TEST_P(Fixtures, TokenByToken) {
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    ExpectSplit(i, std::vector<int64_t>(golden_.sequences[i].size(), 1));
  }
}

TEST_P(Fixtures, EverySplitOfShortSequences) {
  int n_splits = 0;
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    const auto n = static_cast<int64_t>(golden_.sequences[i].size());
    if (n > 60) continue;
    const int64_t stride = kernels::test::IsSlow(GetParam().device) ? 5 : 1;
    for (int64_t split = 1; split < n; split += stride, ++n_splits) ExpectSplit(i, {split});
  }
  EXPECT_GT(n_splits, 0);
}

TEST_P(Fixtures, RandomSplits) {
  std::mt19937 random(7);
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    const int trials = kernels::test::IsSlow(GetParam().device) ? 2 : 8;
    for (int trial = 0; trial < trials; ++trial) {
      auto left = static_cast<int64_t>(golden_.sequences[i].size());
      std::vector<int64_t> lengths;
      while (left > 0) {
        lengths.push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 40)));
        left -= lengths.back();
      }
      ExpectSplit(i, lengths);
    }
  }
}

// Fixtures that also have logits at a cap other than the model's.
class OverriddenCap : public Fixtures {};

TEST_P(OverriddenCap, IsTheSessions) {
  ASSERT_GT(golden_.override_slot_cap, 0);
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    Session session(*model_, *context_, golden_.sequences[i], golden_.override_slot_cap);
    session.Feed(session.remaining());
    ExpectLogits(session, absl::StrCat("logits_override.", i));
  }
}

// Two lists of RoPE's factors: the one for long texts, unless no session gets beyond N tokens. The
// original changes over when a text does, by reading it again.
class LongRope : public Fixtures {
 protected:
  static constexpr int64_t kShortTokens = 64;
  void ExpectRows(int64_t max_tokens, bool (*is_served)(int64_t n)) {
    ModelOptions options = kSmallSessions;
    options.limits.max_unbounded_tokens = max_tokens;
    auto loaded = LanguageModel::Load(golden_.folder, options, *context_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
    int n_served = 0;
    for (size_t i = 0; i < golden_.sequences.size(); ++i) {
      const auto n = static_cast<int64_t>(golden_.sequences[i].size());
      if (!is_served(n)) continue;
      ++n_served;
      for (const int64_t step : {n, int64_t{1}, int64_t{23}}) {
        Session session(*model_, *context_, golden_.sequences[i], centroids());
        while (session.remaining() > 0) session.Feed(std::min(step, session.remaining()));
        ExpectLogits(session, golden_.whole[i]);
      }
    }
    EXPECT_GT(n_served, 1);
  }
};

TEST_P(LongRope, FollowsTheLongestSession) {
  ExpectRows(kShortTokens, [](int64_t n) { return n <= kShortTokens; });
  const std::string short_fingerprint = model_->fingerprint();
  ExpectRows(kShortTokens + 1000, [](int64_t n) { return n > kShortTokens; });
  EXPECT_NE(model_->fingerprint(), short_fingerprint);
}

std::vector<Case> Cases(const std::vector<const char*>& names) {
  std::vector<Case> cases;
  for (const char* name : names) {
    for (kernels::Device device : kernels::test::TestDevices()) cases.push_back({name, device});
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = absl::StrCat(info.param.name, "_", kernels::DeviceName(info.param.device));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Golden, Fixtures,
                         ::testing::ValuesIn(Cases({"sw-ovq", "sw-full", "sw-vq", "sw-ovq-gqa",
                                                    "sw-gdn", "gdn-ovq", "mamba2-ovq", "mesa-sw",
                                                    "sw-lattice", "lattice-enc-l1", "lattice-sim",
                                                    "transformer-vq"})),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(
    OvqRules, Fixtures,
    ::testing::ValuesIn(Cases({"ovq-normalize", "ovq-min-state", "ovq-rates-only", "ovq-delta",
                               "ovq-normalize-delta", "ovq-shares", "ovq-head-shares",
                               "ovq-variance", "query-growth"})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(
    ClosestPair, Fixtures,
    ::testing::ValuesIn(Cases({"sw-closest-pair", "closest-pair-shares", "closest-pair-variance",
                               "closest-pair-merge-variance", "keydiff-shares", "keydiff-spared"})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(
    KvmPaper, Fixtures,
    ::testing::ValuesIn(Cases({"kvm/gptalpha-nope-swa", "kvm/ovq-swa", "kvm/kvm-power-law",
                               "kvm/ovq-flags", "kvm/bswa-sinks", "kvm/post-tokenshift",
                               "kvm/kvm-gqa", "kvm/kvm-saturation", "kvm/kvm-alternate",
                               "kvm/kvm-no-vlens", "kvm/swa-post", "kvm/skips", "kvm/skips-ovq"})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(Recurrent, Fixtures,
                         ::testing::ValuesIn(Cases({"fla/fla-gated_deltanet", "fla/fla-mesa_net",
                                                    "fla/fla-mamba2", "fla/hf-mamba2",
                                                    "fla/state-spaces-mamba2"})),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(
    Published, Fixtures,
    ::testing::ValuesIn(Cases(
        {"published/granitemoehybrid-dense", "published/granitemoehybrid-groups",
         "published/granitemoehybrid-moe", "published/qwen3_5_moe-hub", "published/nemotron_h-bias",
         "published/nemotron_h-dense", "published/nemotron_h-moe", "published/olmo_hybrid-nope",
         "published/olmo_hybrid-rope-gqa", "published/cohere2-sw", "published/cohere2-layer-types",
         "published/qwen3_5-tied", "published/qwen3_5-text", "published/muse_glimmer-hub",
         "published/muse_glimmer-five", "published/fla_kda", "published/kimi_linear-hub",
         "published/fla_gated_deltanet-hybrid"})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(
    Dense, Fixtures,
    ::testing::ValuesIn(
        Cases({"published/llama-smol", "published/llama-scaled", "published/mistral-window",
               "published/mistral-null", "published/qwen2-tied", "published/qwen3-tied",
               "published/qwen3-untied-bias", "published/smollm3-nope", "published/gemma3_text-1b",
               "published/gemma3_text-scaled", "published/olmo2-mha", "published/olmo3-swa",
               "published/olmo3-yarn", "published/phi3-mini"})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(Dense, LongRope, ::testing::ValuesIn(Cases({"published/phi3-longrope"})),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Golden, OverriddenCap,
                         ::testing::ValuesIn(Cases({"sw-ovq", "sw-closest-pair"})), CaseName);

}  // namespace
}  // namespace ovq::model::test
