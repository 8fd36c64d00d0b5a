// Answers do not depend on company: logits and states are the same, bit for bit, however a sequence
// is split, whatever shares its batches, and with any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "tests/model/golden_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

struct TypedCase {
  const char* name;
  kernels::Device device;
  kernels::DType compute;
  kernels::DType state;
};

// The bits of a run of one sequence.
struct Trace {
  std::string logits;
  std::string state;
  bool operator==(const Trace&) const = default;
};

Trace MakeTrace(const Session& session) {
  const std::vector<float>& logits = session.logits();
  return {std::string(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)),
          session.StateBytes()};
}

class Identity : public ::testing::TestWithParam<TypedCase> {
 protected:
  void SetUp() override {
    const std::string missing = kernels::test::WhyNoDevice(GetParam().device);
    if (!missing.empty()) GTEST_SKIP() << missing;
    golden_ = LoadGolden(GetParam().name);
    context_ = BoundContext(GetParam().device);
    model_ = LoadModel(golden_.folder, *context_, GetParam().compute, GetParam().state);
    for (size_t i = 0; i < golden_.sequences.size(); ++i) {
      Session session(*model_, *context_, golden_.sequences[i], kCap);
      session.Feed(session.remaining());
      whole_.push_back(MakeTrace(session));
    }
  }

  bool slow() const { return kernels::test::IsSlow(GetParam().device); }

  // Small enough that a long sequence nearly fills its dictionary.
  static constexpr int64_t kCap = 40;
  Golden golden_;
  std::unique_ptr<kernels::DeviceContext> context_;
  std::unique_ptr<LanguageModel> model_;
  std::vector<Trace> whole_;  // every sequence alone, in one batch
};

TEST_P(Identity, AnySplit) {
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    const std::vector<int64_t> lengths =
        slow() ? std::vector<int64_t>{1, 17}
               : std::vector<int64_t>{1, 2, 3, 5, 8, 15, 16, 17, 31, 64};
    for (int64_t length : lengths) {
      Session session(*model_, *context_, golden_.sequences[i], kCap);
      FeedTogether(*model_, *context_, {&session}, {length});
      EXPECT_TRUE(MakeTrace(session) == whole_[i]) << "sequence " << i << " in steps of " << length;
    }
  }
}

TEST_P(Identity, AnyCompany) {
  std::mt19937 random(11);
  for (int trial = 0; trial < (slow() ? 1 : 6); ++trial) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> pointers;
    std::vector<int64_t> lengths;
    std::vector<size_t> which;
    for (int j = 0; j < 5; ++j) {
      which.push_back(random() % golden_.sequences.size());
      sessions.push_back(
          std::make_unique<Session>(*model_, *context_, golden_.sequences[which.back()], kCap));
      pointers.push_back(sessions.back().get());
      lengths.push_back(1 + static_cast<int64_t>(random() % (j == 0 ? 1 : 30)));
    }
    FeedTogether(*model_, *context_, pointers, lengths);
    for (size_t j = 0; j < sessions.size(); ++j) {
      EXPECT_TRUE(MakeTrace(*sessions[j]) == whole_[which[j]]) << "trial " << trial << ", " << j;
    }
  }
}

class HostIdentity : public Identity {};

TEST_P(HostIdentity, AnyThreads) {
  const auto two = BoundContext(kernels::Device::kCpu, 2);
  const auto model = LoadModel(golden_.folder, *two, GetParam().compute, GetParam().state);
  for (size_t i = 0; i < golden_.sequences.size(); ++i) {
    for (int64_t length : slow() ? std::vector<int64_t>{7} : std::vector<int64_t>{1, 7, 1000}) {
      Session session(*model, *two, golden_.sequences[i], kCap);
      FeedTogether(*model, *two, {&session}, {length});
      EXPECT_TRUE(MakeTrace(session) == whole_[i]) << "sequence " << i << " in steps of " << length;
    }
  }
}

bool KeepsInt8(std::string_view name) {
  return name.find("ovq") != name.npos || name.find("sw-") == 0 || name.find("mesa-sw") == 0;
}

std::vector<TypedCase> TypedCases(kernels::Device device) {
  std::vector<TypedCase> cases;
  for (const char* name :
       {"sw-ovq", "sw-full", "sw-vq", "sw-ovq-gqa", "sw-gdn", "mamba2-ovq", "mesa-sw", "sw-lattice",
        "transformer-vq", "kvm/ovq-flags", "kvm/post-tokenshift", "published/qwen3_5_moe-hub",
        "published/nemotron_h-moe"}) {
    for (kernels::DType compute : {kernels::DType::kF32, kernels::DType::kBF16}) {
      for (kernels::DType state :
           {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kI8}) {
        // CUDA tests only the types that a server chooses by default, and int8, to save time.
        const bool is_default =
            compute == state || (compute == kernels::DType::kBF16 && state == kernels::DType::kI8);
        if (device == kernels::Device::kCuda && !is_default) continue;
        // int8 is tested for models with layers that keep it; others' states do not change.
        if (state == kernels::DType::kI8 && !KeepsInt8(name)) continue;
        cases.push_back({name, device, compute, state});
      }
    }
  }
  return cases;
}

std::vector<TypedCase> AllTypedCases() {
  std::vector<TypedCase> cases = TypedCases(kernels::Device::kCpu);
  if (kernels::kWithCuda)
    std::ranges::copy(TypedCases(kernels::Device::kCuda), std::back_inserter(cases));
  return cases;
}

std::string TypedCaseName(const ::testing::TestParamInfo<TypedCase>& info) {
  std::string name = absl::StrCat(info.param.name, "_", kernels::DeviceName(info.param.device), "_",
                                  kernels::DTypeName(info.param.compute), "_state_",
                                  kernels::DTypeName(info.param.state));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Golden, Identity, ::testing::ValuesIn(AllTypedCases()), TypedCaseName);
INSTANTIATE_TEST_SUITE_P(Golden, HostIdentity,
                         ::testing::ValuesIn(TypedCases(kernels::Device::kCpu)), TypedCaseName);

}  // namespace
}  // namespace ovq::model::test
