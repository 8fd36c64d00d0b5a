// One head of Transformer-VQ's attention on the CPU. For one token, with its scores s [n_codes],
// distance biases r [mem_len + 1], means V [n_means, value_dim] with counts n, and the ring's
// values v with codes z:
//   w = [n e^(s - max) | e^(s_z + r_distance - max)] / sum,  y = w [V | v]
// and at a span's end  V_z += (v_i - V_z) / n_z  over the values i that the next span's tokens do
// not find in the ring, in order of position.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/common/highway_targets.h"
#include "kernels/common/parallel.h"
#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/transformer_vq/transformer_vq_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr D d;
constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
// Accumulators must fit the register file: 32 registers where vectors are 64 bytes, else 16.
constexpr int kRowTile = 4;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int kRowVectors = kValueSlice / kLanes < 8 ? kValueSlice / kLanes : 8;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// argmin |k - code|^2 = argmax k . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const float* products, const float* half_norms, int32_t n) {
  V highest = hn::Set(d, kMasked);
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    highest = hn::Max(highest, hn::Sub(hn::LoadU(d, products + i), hn::LoadU(d, half_norms + i)));
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; i < n; ++i) best = std::max(best, products[i] - half_norms[i]);
  for (int32_t j = 0; j < n; ++j) {
    if (products[j] - half_norms[j] == best) return j;
  }
  return 0;
}

// Computes the exponents of the slots for token `row` at `position`; closed slots get kMasked.
void ScoreSlots(const TransformerVqArgs& args, std::byte* session, int64_t row, int64_t position,
                float* exponents) {
  const TransformerVqShape& shape = args.shape;
  const float* scores = args.scores + row * shape.n_codes;
  const float* relative = args.relative + row * (shape.mem_len + 1);
  const auto* counts = reinterpret_cast<const uint32_t*>(session + args.counts);
  const auto* codes = reinterpret_cast<const int32_t*>(session + args.codes);
  for (int32_t n = 0; n < shape.n_means(); ++n) exponents[n] = counts[n] > 0 ? scores[n] : kMasked;
  float* ring = exponents + shape.n_means();
  std::fill_n(ring, shape.ring(), kMasked);
  const int64_t span_begin = position / kTransformerVqSpan * kTransformerVqSpan,
                near = std::max<int64_t>(0, position - shape.mem_len),
                first = shape.has_means ? shape.first(span_begin) : near;
  auto slot = static_cast<int32_t>(first % shape.ring());
  for (int64_t p = first; p <= position; ++p) {
    ring[slot] = scores[codes[slot]] + (p < near ? 0.0f : relative[position - p]);
    if (++slot == shape.ring()) slot = 0;
  }
}

// Fills weights [n_weights]: 0 for closed slots and in the padding after the slots.
void WeighSlots(const TransformerVqArgs& args, std::byte* session, int64_t row, int64_t position,
                float* weights, int64_t n_weights) {
  const TransformerVqShape& shape = args.shape;
  ScoreSlots(args, session, row, position, weights);
  std::fill(weights + shape.slots(), weights + n_weights, kMasked);
  V highest = hn::Set(d, kMasked);
  for (int64_t i = 0; i < n_weights; i += kLanes) {
    highest = hn::Max(highest, hn::LoadU(d, weights + i));
  }
  const V max = hn::Set(d, hn::GetLane(hn::MaxOfLanes(d, highest)));
  for (int64_t i = 0; i < n_weights; i += kLanes) {
    hn::StoreU(hn::Exp(d, hn::Sub(hn::LoadU(d, weights + i), max)), d, weights + i);
  }
  const auto* counts = reinterpret_cast<const uint32_t*>(session + args.counts);
  for (int32_t n = 0; n < shape.n_means(); ++n) weights[n] *= static_cast<float>(counts[n]);
  V sum = hn::Zero(d);
  for (int64_t i = 0; i < n_weights; i += kLanes) sum = hn::Add(sum, hn::LoadU(d, weights + i));
  const V factor = hn::Set(d, 1.0f / hn::GetLane(hn::SumOfLanes(d, sum)));
  for (int64_t i = 0; i < n_weights; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, weights + i), factor), d, weights + i);
  }
}

// to = silu(from) for n channels of a slice, zeros after them. Only e^-|x| is computed, which
// cannot overflow.
void StoreValue(const float* from, int n, float* to) {
  std::fill_n(std::copy_n(from, n, to), kValueSlice - n, 0.0f);
  for (int c = 0; c < kValueSlice; c += kLanes) {
    const V x = hn::LoadU(d, to + c), one = hn::Set(d, 1);
    const V e = hn::Exp(d, hn::Neg(hn::Abs(x)));
    const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
    hn::StoreU(hn::Mul(x, hn::Div(numerator, hn::Add(one, e))), d, to + c);
  }
}

// Tokens' sums over all slots, slot after slot, for kWide vectors of channels. Each y
// [kValueSlice].
template <int kRows, int kWide>
HWY_INLINE void SumChannels(const float* weights, int64_t row_weights, const float* values,
                            int32_t n_slots, float* y) {
  V sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int32_t slot = 0; slot < n_slots; ++slot, values += kValueSlice) {
    V value[kWide];
    for (int v = 0; v < kWide; ++v) value[v] = hn::LoadU(d, values + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * row_weights + slot]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) hn::StoreU(sum[r][v], d, y + r * kValueSlice + v * kLanes);
  }
}

template <int kRows, int kWide>
HWY_INLINE void SumRows(const float* weights, int64_t row_weights, const float* values,
                        int32_t n_slots, float* y) {
  for (int c = 0; c < kValueSlice; c += kWide * kLanes) {
    SumChannels<kRows, kWide>(weights, row_weights, values + c, n_slots, y + c);
  }
}

// y[t] = sum_s weights[t][s] values[s]: y [n_tokens][kValueSlice], values [n_slots][kValueSlice],
// tokens' weights row_weights apart. A token's sums are the same whether it comes alone or in a
// tile.
void SumSlots(const float* weights, int64_t row_weights, int n_tokens, const float* values,
              int32_t n_slots, float* y) {
  int r = 0;
  for (; r + kRowTile <= n_tokens; r += kRowTile) {
    SumRows<kRowTile, kTileVectors>(weights + r * row_weights, row_weights, values, n_slots,
                                    y + r * kValueSlice);
  }
  for (; r < n_tokens; ++r) {
    SumRows<1, kRowVectors>(weights + r * row_weights, row_weights, values, n_slots,
                            y + r * kValueSlice);
  }
}

// mean += (value - mean) rate, for one slice.
void MergeValue(const float* value, float rate, float* mean) {
  for (int c = 0; c < kValueSlice; c += kLanes) {
    const V old = hn::LoadU(d, mean + c);
    const V change = hn::Sub(hn::LoadU(d, value + c), old);
    hn::StoreU(hn::MulAdd(change, hn::Set(d, rate), old), d, mean + c);
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(NearestCode);
HWY_EXPORT(WeighSlots);
HWY_EXPORT(StoreValue);
HWY_EXPORT(SumSlots);
HWY_EXPORT(MergeValue);

// A token's weights are padded to whole vectors.
constexpr int64_t kPadding = 16;

// A value that joins its code's mean, both as slots of the values.
struct Merging {
  int32_t value, mean;
  float rate;  // 1 / the code's count, this value included
};

// One sequence's tokens of a wave.
struct SequenceTokens {
  std::byte* session;
  WaveTokens tokens;
  int64_t first;  // index of its first token in the wave
  std::vector<Merging> merging;

  int n_tokens() const { return static_cast<int>(tokens.end - tokens.begin); }
};

struct Token {
  const SequenceTokens* run;
  int64_t offset;  // index from the run's first token
};

// The tokens of one wave, for one head.
class Wave {
 public:
  Wave(const TransformerVqArgs& args, int wave);
  void Run(DeviceContext& context);

 private:
  template <class T>
  T* At(std::byte* session, size_t offset) const {
    return reinterpret_cast<T*>(session + offset);
  }
  void FindCode(const Token& token) const;
  void Weigh(const Token& token, float* weights) const;
  // Finds the values that leave the ring for the means and raises their codes' counts.
  std::vector<Merging> Count(const SequenceTokens& run) const;
  // Processes one slice of a run: stores values, sums over all slots, merges.
  void AttendSlice(const SequenceTokens& run, int slice, const float* weights) const;

  const TransformerVqArgs& args_;
  const TransformerVqShape& shape_;
  const int64_t n_weights_;  // weights of one token
  std::vector<SequenceTokens> runs_;
  std::vector<Token> tokens_;
};

Wave::Wave(const TransformerVqArgs& args, int wave)
    : args_(args),
      shape_(args.shape),
      n_weights_((shape_.slots() + kPadding - 1) / kPadding * kPadding) {
  const BatchSequences& seqs = args.seqs;
  int64_t n_tokens = 0;
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    const WaveTokens tokens = TokensInWave(seqs.start_pos[s], seqs.token_begin[s],
                                           seqs.sequence_length(s), kTransformerVqSpan, wave);
    if (tokens.begin >= tokens.end) continue;
    runs_.push_back({seqs.state[s], tokens, n_tokens, {}});
    n_tokens += tokens.end - tokens.begin;
  }
  for (const SequenceTokens& run : runs_) {
    for (int64_t i = 0; i < run.n_tokens(); ++i) tokens_.push_back({&run, i});
  }
}

void Wave::FindCode(const Token& token) const {
  const int64_t at = args_.seqs.n_tokens() + token.run->tokens.row + token.offset;
  const int64_t slot = (token.run->tokens.begin + token.offset) % shape_.ring();
  At<int32_t>(token.run->session, args_.codes)[slot] = HWY_DYNAMIC_DISPATCH(NearestCode)(
      args_.scores + at * shape_.n_codes, args_.half_norms, shape_.n_codes);
}

void Wave::Weigh(const Token& token, float* weights) const {
  HWY_DYNAMIC_DISPATCH(WeighSlots)
  (args_, token.run->session, token.run->tokens.row + token.offset,
   token.run->tokens.begin + token.offset, weights, n_weights_);
}

std::vector<Merging> Wave::Count(const SequenceTokens& run) const {
  std::vector<Merging> merging;
  const int64_t next = run.tokens.span_begin + kTransformerVqSpan;
  if (run.tokens.end < next || !shape_.has_means) return merging;
  auto* counts = At<uint32_t>(run.session, args_.counts);
  for (int64_t p = shape_.first(run.tokens.span_begin); p < shape_.first(next); ++p) {
    const auto slot = static_cast<int32_t>(p % shape_.ring());
    const int32_t code = At<const int32_t>(run.session, args_.codes)[slot];
    if (counts[code] < std::numeric_limits<uint32_t>::max()) ++counts[code];
    merging.push_back({shape_.n_means() + slot, code, 1.0f / static_cast<float>(counts[code])});
  }
  return merging;
}

void Wave::AttendSlice(const SequenceTokens& run, int slice, const float* weights) const {
  float* values =
      At<float>(run.session, args_.values) + int64_t{slice} * shape_.slots() * kValueSlice;
  const int width = std::min(kValueSlice, shape_.value_dim - slice * kValueSlice);
  float* tokens = args_.tokens + run.tokens.row * args_.token_stride + slice * kValueSlice;
  for (int i = 0; i < run.n_tokens(); ++i) {
    const int64_t slot = shape_.n_means() + (run.tokens.begin + i) % shape_.ring();
    HWY_DYNAMIC_DISPATCH(StoreValue)
    (tokens + i * args_.token_stride, width, values + slot * kValueSlice);
  }
  float y[kTransformerVqSpan * kValueSlice];
  HWY_DYNAMIC_DISPATCH(SumSlots)
  (weights + run.first * n_weights_, n_weights_, run.n_tokens(), values, shape_.slots(), y);
  for (int i = 0; i < run.n_tokens(); ++i) {
    std::copy_n(y + i * kValueSlice, width, tokens + i * args_.token_stride);
  }
  for (const Merging& one : run.merging) {
    HWY_DYNAMIC_DISPATCH(MergeValue)
    (values + int64_t{one.value} * kValueSlice, one.rate, values + int64_t{one.mean} * kValueSlice);
  }
}

void Wave::Run(DeviceContext& context) {
  ScratchScope scope(context);
  const auto n_tokens = static_cast<int64_t>(tokens_.size());
  auto* weights = scope.Allocate<float>(static_cast<size_t>(n_tokens * n_weights_));
  const auto for_tokens = [&](auto&& fn) {
    ParallelRows(context, n_tokens, shape_.slots(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn(i);
    });
  };
  for_tokens([&](int64_t i) { FindCode(tokens_[i]); });
  for_tokens([&](int64_t i) { Weigh(tokens_[i], weights + i * n_weights_); });
  for (SequenceTokens& run : runs_) run.merging = Count(run);
  const int slices = shape_.slices();
  ParallelFor(context, static_cast<int64_t>(runs_.size()) * slices, [&](int64_t task, int) {
    AttendSlice(runs_[task / slices], static_cast<int>(task % slices), weights);
  });
}

}  // namespace

void TransformerVqCpu(DeviceContext& context, const TransformerVqArgs& args) {
  const int n_waves = CountWaves(args.seqs, kTransformerVqSpan);
  for (int wave = 0; wave < n_waves; ++wave) Wave(args, wave).Run(context);
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
