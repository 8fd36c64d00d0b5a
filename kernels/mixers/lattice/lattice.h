// Lattice: a recurrence on slots of unit length, each of which takes in the part of a token that is
// orthogonal to it. It is not linear in its state. The equations: README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/mixers/recurrent/padded.h"
#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq::kernels {

inline constexpr int64_t kMaxLatticeSlots = 4096;
inline constexpr int64_t kMaxLatticeValueDim = 256;
// Largest n_slots * stride on CUDA: a head's slots fill 192 KiB of shared memory, which not every
// GPU has (CheckLatticeCuda).
inline constexpr int64_t kMaxLatticeCudaElements = 48 * 1024;

// Loss that a token's update descends: |phi(S) k - v|^2 (eq. 6), |phi(S)^T v - k|^2 (eq. 9),
// -<phi(S)^T v, k> (eq. 11).
enum class LatticeObjective : uint8_t { kDecoding, kEncoding, kSimilarity };

// Section "lattice" of config.json.
struct LatticeConfig {
  int n_heads = 0;         // num_heads
  int n_slots = 0;         // m: num_slots
  int value_head_dim = 0;  // dv
  int conv_size = 4;       // 2 to 64
  bool conv_bias = false;
  LatticeObjective objective = LatticeObjective::kDecoding;
  bool normalized_projection = true;  // slots are scaled to length 1 (eq. 14); else they keep their
                                      // length
  bool use_forget_gate = true;
  bool thresholds = false;  // the forget gate is a soft threshold (eq. 18) rather than a decay (eq.
                            // 16): regularization l1
  float norm_eps = 1e-5f;   // rms_norm_eps

  constexpr int64_t key_width() const { return int64_t{n_heads} * n_slots; }
  constexpr int64_t value_width() const { return int64_t{n_heads} * value_head_dim; }
  constexpr int64_t stride() const { return PaddedWidth(value_head_dim); }  // of slots
  constexpr bool decays() const { return use_forget_gate && !thresholds; }
};
void ReadConfig(const FieldReaders& from, LatticeConfig& config);

// Gates [n_tokens, n_heads]; null where the config has none.
struct LatticeGates {
  const float* gamma;
  const float* mu;
  const float* dt;  // together with rate [n_heads], below 0: rho = -rate dt
  const float* rate;

  constexpr float Mu(int64_t gate) const { return mu == nullptr ? 1.0f : mu[gate]; }
  // Soft threshold tau = gamma rho.
  constexpr float Tau(int64_t gate, int head) const {
    return dt == nullptr ? 0.0f : gamma[gate] * (-rate[head] * dt[gate]);
  }
};

struct LatticeArgs {
  LatticeConfig config;
  StatePlace slots;    // per head float [n_slots][stride]
  const float *q, *k;  // [n_tokens, n_heads, n_slots], unit length, tokens qk_stride apart
  const float* v;      // [n_tokens, n_heads, value_head_dim], tokens v_stride apart
  int64_t qk_stride, v_stride;
  LatticeGates gates;
  float* y;  // [n_tokens, n_heads, value_head_dim], packed
};

// A state made from the config alone starts with zero slots, as the initial slots are among the
// weights.
class Lattice final : public RecurrentMixer {
 public:
  using Config = LatticeConfig;
  Lattice(const StateSpec&, const Config& config)
      : RecurrentMixer(Describe(config)), config_(config) {}

 private:
  static RecurrentLayer Describe(const Config& config);
  void LoadOwn(const MixerSpec& spec) override;
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const override;

  const Config config_;
};

void LatticeCpu(DeviceContext& context, const BatchSequences& seqs, const LatticeArgs& args);
void LatticeCuda(DeviceContext& context, const BatchSequences& seqs, const LatticeArgs& args);
// FailedPrecondition: the GPU gives a thread block too little shared memory for a head's slots.
absl::Status CheckLatticeCuda(DeviceContext& context, const LatticeConfig& config);

}  // namespace ovq::kernels
