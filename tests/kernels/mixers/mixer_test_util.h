// One mixer with random weights on any device, and sessions whose memory lies on that device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/stage.h"
#include "tests/test_util.h"

namespace ovq::test {

inline constexpr int kModelDim = 48;

struct MixerCase {
  std::string type;
  int n_heads, n_kv_heads, head_dim, value_head_dim;
  int chunk_len, slot_cap, window;
  DType state_dtype;
  DType compute_dtype;
  Device device = Device::kCpu;
};

// Rows [n][kModelDim].
inline std::vector<float> RandomRows(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(n) * kModelDim);
  for (float& value : rows) value = normal(random);
  return rows;
}
inline std::vector<float> Rows(const std::vector<float>& all, int64_t begin, int64_t end) {
  return {all.begin() + begin * kModelDim, all.begin() + end * kModelDim};
}

// Random weights of one layer by name; the same for every device.
class RandomLayer {
 public:
  explicit RandomLayer(uint32_t seed) : random_(seed) {}
  WeightSource source() {
    return [this](std::string_view leaf, const Shape& shape) -> absl::StatusOr<TensorView> {
      std::vector<float>& values = tensors_[std::string(leaf)];
      if (values.empty()) {
        const bool beta = leaf == "self_attn.beta";
        std::normal_distribution<float> normal(beta ? 6.0f : 0.0f, beta ? 1.0f : 0.15f);
        for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(normal(random_));
      }
      return TensorView{values.data(), DType::kF32, shape};
    };
  }

 private:
  std::mt19937 random_;
  std::map<std::string, std::vector<float>> tensors_;
};

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

  size_t session_bytes() const { return session_bytes_; }
  const SequenceMixer& mixer() const { return *mixer_; }
  DeviceContext& context() { return *context_; }
  MixerSession NewSession() { return {*context_, session_bytes_}; }

  struct Piece {
    std::byte* session;  // null: padding, which a device's kernels skip
    int64_t start;
    std::vector<float> x;  // [n][kModelDim]
    int64_t rows() const { return static_cast<int64_t>(x.size()) / kModelDim; }
  };
  // One step over the pieces; y of all rows, the residual starting at zero.
  std::vector<float> Step(const std::vector<Piece>& pieces);
  // All rows through one session, cut at the given positions.
  std::vector<float> Run(MixerSession& session, const std::vector<float>& x,
                         std::vector<int64_t> cuts, int64_t start = 0);

 private:
  int32_t slot_cap_;
  DType compute_dtype_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<SequenceMixer> mixer_;
  LayerState where_;
  size_t session_bytes_ = 0;
};

}  // namespace ovq::test
