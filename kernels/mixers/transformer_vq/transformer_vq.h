// Transformer-VQ's gated attention unit (Lingle 2023, arXiv 2309.16354, section 3, and its
// published code): one softmax over the window's quantised keys, with biases by distance, and over
// one mean value per code for all older tokens.
#pragma once

#include <cstddef>
#include <cstdint>

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

// The state and factory functions of its MixerEntry.
absl::StatusOr<MixerState> TransformerVqState(const StateSpec& spec);
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeTransformerVq(const MixerSpec& spec);

}  // namespace ovq::kernels
