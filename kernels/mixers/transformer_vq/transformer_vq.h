// Transformer-VQ's gated attention unit (Lingle 2023, arXiv 2309.16354, section 3, and its
// published code): one softmax over the window's quantised keys, with biases by distance, and over
// one mean value per code for all older tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

// Values that left the window join the means at multiples of this many positions. Until then
// queries attend to them one by one, which in exact arithmetic is the same.
inline constexpr int kTransformerVqSpan = 64;
// Channels of a value stored side by side: the part of the values that is read at one go.
inline constexpr int kValueSlice = 64;

struct TransformerVqShape {
  int n_heads = 0;  // num_heads
  int head_dim = 128;
  int value_dim = 0;      // value_head_dim
  int32_t n_codes = 512;  // of a head: codebook_size
  int32_t mem_len = 512;  // older keys that a query attends to with a bias
  bool has_means = true;  // false: older keys are forgotten; agg_cache

  constexpr int32_t n_means() const { return has_means ? n_codes : 0; }
  // Position p is in slot p % ring(). A span's tokens find all positions from first() on there.
  constexpr int32_t ring() const { return mem_len + kTransformerVqSpan; }
  constexpr int64_t first(int64_t span_begin) const {
    return span_begin > mem_len ? span_begin - mem_len : 0;
  }
  // Slots of values: the codes' means, then the ring.
  constexpr int32_t slots() const { return n_means() + ring(); }
  constexpr int slices() const { return (value_dim + kValueSlice - 1) / kValueSlice; }
};

// Section "transformer_vq" of config.json.
struct TransformerVqConfig {
  TransformerVqShape shape;
  double pe_lam = 100000;  // base of the angles of distances
};
void ReadConfig(const FieldReaders& from, TransformerVqConfig& config);

// One head of a batch. `values`, `counts` and `codes` are offsets from a session's base.
struct TransformerVqArgs {
  TransformerVqShape shape;
  const BatchSequences& seqs;
  size_t values;            // float [slices][slots][kValueSlice], padded with zeros
  size_t counts;            // uint32 [n_means], values in each mean; stays at 2^32 - 1
  size_t codes;             // int32 [ring], codes of the keys
  const float* scores;      // [2][n_tokens][n_codes]: (q + c xl_u) . code, and k . code
  const float* half_norms;  // [n_codes]: |code|^2 / 2
  const float* relative;    // [n_tokens][mem_len + 1]: (q + c xl_v) . R_distance
  // [n_tokens][value_dim], tokens `token_stride` floats apart. Input: values before their silu.
  // Output: the attention's result, in place.
  float* tokens;
  int64_t token_stride;
};

void TransformerVqCpu(DeviceContext& context, const TransformerVqArgs& args);
void TransformerVqCuda(DeviceContext& context, const TransformerVqArgs& args);

class TransformerVq final : public SequenceMixer {
 public:
  using Config = TransformerVqConfig;
  TransformerVq(const StateSpec& spec, const TransformerVqConfig& config);

  void Load(const MixerSpec& spec) override;
  void Forward(const LayerArgs& args, const ProductRows& x, TensorView y) const override;
  std::vector<StateExtent> UndoExtents(const LayerState& where,
                                       const TokenRange& tokens) const override;
  bool CanUndoSuffix(const TokenRange& tokens) const override {
    return tokens.end % kTransformerVqSpan != 0;
  }

 private:
  enum Field { kValues, kCounts, kCodes };
  struct Head {
    Linear query, key;                // [head_dim, d_model]
    Linear codes;                     // [n_codes, head_dim]
    Linear relative;                  // [mem_len + 1, head_dim]
    Buffer code_bias, position_bias;  // [head_dim] float: c xl_u, c xl_v
    Buffer half_norms;                // [n_codes] float
  };
  void LoadHeads(const MixerSpec& spec);
  // One head's attention. tokens: see TransformerVqArgs.
  void AttendHead(const LayerArgs& args, int h, TensorView x, float* tokens, int64_t stride) const;
  size_t place(const LayerState& where, Field field, int head) const {
    const StateField& all = state_.fixed.list()[field];
    return where.fixed_offset + state_.fixed.offset(field) +
           all.bytes() / static_cast<size_t>(config_.shape.n_heads) * static_cast<size_t>(head);
  }

  const TransformerVqConfig config_;
  DType compute_ = DType::kF32;
  Linear gates_values_;  // [2 n_heads value_dim, d_model]
  Linear output_;        // [d_model, n_heads value_dim], times the residual's scale
  Buffer norm_weight_;   // [head_dim] float: c
  std::vector<Head> heads_;
};

}  // namespace ovq::kernels
