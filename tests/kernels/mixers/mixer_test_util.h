// One mixer with random weights on any device, and sessions whose memory lies on that device.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {

inline constexpr int kModelDim = 48;

using Fields = std::map<std::string, Attrs::Value>;  // of config.json
Attrs MakeFields(const Fields& fields, const std::string& path = "");
// The config of a layer of this type; wrong fields are in its `problems`.
std::shared_ptr<MixerConfig> ReadFields(const std::string& type, const Attrs& model,
                                        const Attrs& section, int64_t d_model = kModelDim);

// A layer under test: its fields of config.json and the distribution of its weights.
struct MixerCase {
  std::string type;  // in layer_types
  std::string name;
  Fields model, section;
  // Mean and standard deviation of the weights by leaf; 0 and 0.15 for leaves not named
  // where d_model is kModelDim, less in wider layers.
  std::map<std::string, std::pair<float, float>> weights;
  int64_t slot_cap = 0;
  std::vector<double> slot_shares = {1};  // StateSpec::slot_shares
  int64_t output_terms = 0;               // products that one element of the output sums
  DType kv_dtype = DType::kF32;
  DType compute_dtype = DType::kF32;
  Device device = Device::kCpu;
  int64_t d_model = kModelDim;
};

// A case as a test's parameter: gtest copies all tests' parameters whenever a program starts.
struct MixerParam {
  std::shared_ptr<const MixerCase> mixer_case;
};
inline void PrintTo(const MixerParam& param, std::ostream* out) {
  *out << param.mixer_case->type << " " << param.mixer_case->name;
}
class MixerCaseTest : public testing::TestWithParam<MixerParam> {
 protected:
  static const MixerCase& GetParam() { return *WithParamInterface::GetParam().mixer_case; }
};

// The cases of the contract test. A mixer's file of cases registers them by defining one of these.
class MixerCases {
 public:
  explicit MixerCases(std::vector<MixerCase> cases);
  static const std::vector<MixerCase>& All();
  // Every case on every device.
  static std::vector<MixerParam> OnDevices();
};
std::string MixerCaseName(const testing::TestParamInfo<MixerParam>& info);

// A layer of this type in the shape of the OVQ paper's 77M models, for benchmarks: d_model 768, 6
// heads of 128, chunks and windows of 128 tokens, N = 2048, in bfloat16.
MixerCase BenchCase(std::string_view type);
// A mixer whose section has other fields registers them by defining one of these.
class BenchFields {
 public:
  BenchFields(const std::string& type, std::map<std::string, Attrs::Value> section);
};

// The layer of a case on the context's device, and its state alone, for which a device need not be
// there.
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeMixer(const MixerCase& c, DeviceContext& context,
                                                         WeightCount* count = nullptr);
absl::StatusOr<MixerState> MakeState(const MixerCase& c, DType kv_dtype, Device device);

// The case's random weights, by name; the same for every device. `c` outlives it.
WeightSource RandomWeights(const MixerCase& c);

// Rows [n][kModelDim].
std::vector<float> RandomRows(int n, uint32_t seed);
inline std::vector<float> Rows(const std::vector<float>& all, int64_t begin, int64_t end) {
  return {all.begin() + begin * kModelDim, all.begin() + end * kModelDim};
}

// Zeroed memory of one session between guard bytes.
class MixerSession {
 public:
  MixerSession(DeviceContext& context, size_t bytes)
      : MixerSession(context, std::vector<std::byte>(bytes, std::byte{0})) {}
  MixerSession(DeviceContext& context, const std::vector<std::byte>& state)
      : context_(&context), bytes_(state.size()) {
    std::vector<std::byte> all(bytes_ + 2 * kGuardBytes, kGuard);
    std::copy(state.begin(), state.end(), all.begin() + kGuardBytes);
    memory_ = context.Upload(all.data(), all.size());
  }

  std::byte* base() { return memory_.as<std::byte>() + kGuardBytes; }
  std::vector<std::byte> bytes() const {
    const std::vector<std::byte> all = Everything();
    return {all.begin() + kGuardBytes, all.end() - kGuardBytes};
  }
  bool GuardsIntact() const {
    const std::vector<std::byte> all = Everything();
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (all[i] != kGuard || all[all.size() - 1 - i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0xA5};

  std::vector<std::byte> Everything() const {
    std::vector<std::byte> all(memory_.bytes());
    context_->CopyToHost(all.data(), memory_.as<std::byte>(), all.size());
    return all;
  }

  DeviceContext* context_;
  size_t bytes_;
  Buffer memory_;
};

// A mixer on a device, with the layout of one session's memory: fixed part, then the blocks that
// max_tokens tokens may need.
class MixerInstance {
 public:
  MixerInstance(const MixerCase& c, Device device, int n_threads, int64_t max_tokens);

  size_t session_bytes() const { return initial_.size(); }
  const SequenceMixer& mixer() const { return *mixer_; }
  const LayerState& where() const { return where_; }
  int64_t slot_cap() const { return slot_cap_; }
  DeviceContext& context() { return *context_; }
  MixerSession NewSession() { return {*context_, initial_}; }

  struct Rows {
    std::byte* session;  // null: padding, which a device's kernels skip
    int64_t start;
    std::vector<float> x;  // [n][kModelDim]
    int64_t count() const { return static_cast<int64_t>(x.size()) / kModelDim; }
  };
  // Runs one batch of tokens of several sessions; returns y of all tokens, from a zero residual.
  std::vector<float> RunBatch(const std::vector<Rows>& sequences);
  // Runs all tokens through one session in batches cut at the given positions.
  std::vector<float> Run(MixerSession& session, const std::vector<float>& x,
                         std::vector<int64_t> cuts, int64_t start = 0);

 private:
  int64_t slot_cap_;
  DType compute_dtype_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<SequenceMixer> mixer_;
  LayerState where_;
  std::vector<Growth> growths_;  // the mixer's, if it grows
  std::vector<std::byte> initial_;
};

}  // namespace ovq::kernels::test
