// Lower bounds from x . y of keys and of values: in float32 on any instruction set, or by products
// of bfloat16 pairs (bf16_dots.h). Their order of sums differs, which the slack allows for.
#include <limits>
#include <optional>

#include "kernels/common/prefetch.h"
#include "kernels/mixers/closest_pair/bf16_dots.h"
#include "kernels/mixers/closest_pair/distance_lower_bounds.h"
#include "kernels/mixers/common/block_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/closest_pair/distance_lower_bounds_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kRowTile = 4;
// The accumulators must fit the register file: 32 registers with 64-byte vectors, else 16.
constexpr int kVectors = kLanes == 16 ? 4 : 2;

// Slack subtracted from a bound, relative to |x|^2 + |y|^2. A float32 sum of at most 1,024 terms
// errs by up to 1,024 2^-24 = 6.1e-5. That counts once for |y|^2, twice for 2 x . y (which runs
// over values, then over keys) and twice for the exact distance, which is at most
// 2 (|x|^2 + |y|^2); the rest is a tenth of a sum.
constexpr float kSlack = 3.2e-4f;
// Dot products of bfloat16 pairs flush float32 subnormals to 0.
constexpr float kTiny = 1e-30f;

bool HasVectors() { return kLanes > 1; }

// packed[pair][slot] from keys [channel][slot].
void PackKeys(const uint16_t* keys, int head_dim, uint32_t* packed) {
  const DU du;
  const hn::Rebind<uint16_t, DU> d16;
  for (int c = 0; c < head_dim; c += 2) {
    for (int s = 0; s < kBlockSlots; s += kLanes, packed += kLanes) {
      const uint16_t* low = keys + static_cast<size_t>(c) * kBlockSlots + s;
      auto pair = hn::PromoteTo(du, hn::LoadU(d16, low));
      if (c + 1 < head_dim) {
        const auto high = hn::PromoteTo(du, hn::LoadU(d16, low + kBlockSlots));
        pair = hn::Or(pair, hn::ShiftLeft<16>(high));
      }
      hn::StoreU(pair, du, packed);
    }
  }
}

// packed[pair][slot] from values [slot][pair], in blocks of four by four.
void PackValues(const uint32_t* values, size_t n_pairs, uint32_t* packed) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t s = 0; s < kBlockSlots; ++s) {
    for (size_t p = 0; p < n_pairs; ++p) packed[p * kBlockSlots + s] = values[s * n_pairs + p];
  }
#else
  const hn::CappedTag<uint32_t, 4> four;
  for (size_t s = 0; s < kBlockSlots; s += 4) {
    for (size_t p = 0; p < n_pairs; p += 4) {
      const uint32_t* const from = values + s * n_pairs + p;
      uint32_t* const to = packed + p * kBlockSlots + s;
      const auto a = hn::LoadU(four, from), b = hn::LoadU(four, from + n_pairs),
                 c = hn::LoadU(four, from + 2 * n_pairs), e = hn::LoadU(four, from + 3 * n_pairs);
      const auto ac = hn::InterleaveLower(four, a, c), be = hn::InterleaveLower(four, b, e),
                 ac_high = hn::InterleaveUpper(four, a, c),
                 be_high = hn::InterleaveUpper(four, b, e);
      hn::StoreU(hn::InterleaveLower(four, ac, be), four, to);
      hn::StoreU(hn::InterleaveUpper(four, ac, be), four, to + kBlockSlots);
      hn::StoreU(hn::InterleaveLower(four, ac_high, be_high), four, to + 2 * kBlockSlots);
      hn::StoreU(hn::InterleaveUpper(four, ac_high, be_high), four, to + 3 * kBlockSlots);
    }
  }
#endif
}

// Two neighbouring channels of some slots.
struct Channels {
  V low, high;
};
HWY_INLINE Channels Unpack(const uint32_t* words) {
  const D d;
  const DU du;
  const auto both = hn::LoadU(du, words);
  return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
          hn::BitCast(d, hn::And(both, hn::Set(du, 0xFFFF0000u)))};
}

// |y|^2 of some slots, n_pairs pairs of channels.
HWY_INLINE V Squares(const uint32_t* words, size_t n_pairs) {
  V sum = hn::Zero(D());
  for (size_t p = 0; p < n_pairs; ++p) {
    const Channels y = Unpack(words + p * kBlockSlots);
    sum = hn::MulAdd(y.high, y.high, hn::MulAdd(y.low, y.low, sum));
  }
  return sum;
}

void PackBlock(const CandidateBlock& block, const PackedCandidates& packed, uint32_t* pairs,
               float* squares) {
  const D d;
  const size_t key_pairs = PackedPairs(packed.head_dim, 0),
               value_pairs = PackedPairs(0, packed.value_stride);
  uint32_t* const values = pairs + key_pairs * kBlockSlots;
  PackKeys(static_cast<const uint16_t*>(block.keys), packed.head_dim, pairs);
  PackValues(static_cast<const uint32_t*>(block.values), value_pairs, values);
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    const V of_values = Squares(values + s, value_pairs);
    hn::StoreU(hn::MulAdd(hn::Set(d, packed.value_scale), of_values, Squares(pairs + s, key_pairs)),
               d, squares + s);
  }
}

// sum[row][vector] += x . y for n channels of rows x and of slots [pair][64].
template <int kRows, int kWide, bool kAhead>
HWY_INLINE void AddDots(const float* const* x, int n, const uint32_t* slots, const uint32_t* ahead,
                        V (&sum)[kRows][kWide]) {
  const D d;
  for (int c = 0; c < n; c += 2, slots += kBlockSlots, ahead += kBlockSlots) {
    if constexpr (kAhead) PrefetchToL2(ahead, kBlockSlots * sizeof(uint32_t));
    Channels y[kWide];
    for (int v = 0; v < kWide; ++v) y[v] = Unpack(slots + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V low = hn::Set(d, x[r][c]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::MulAdd(low, y[v].low, sum[r][v]);
    }
    if (c + 1 == n) return;
    for (int r = 0; r < kRows; ++r) {
      const V high = hn::Set(d, x[r][c + 1]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::MulAdd(high, y[v].high, sum[r][v]);
    }
  }
}

// dots[row][64] = x . y of keys + value_scale x . y of values, of a block [PackedPairs][64].
// kAhead: and prefetches the next one.
template <int kRows, bool kAhead>
void DotRows(const PackedCandidates& packed, const LowerBoundQuery* queries, const uint32_t* block,
             float* dots) {
  const D d;
  const float *keys[kRows], *values[kRows];
  for (int r = 0; r < kRows; ++r) {
    keys[r] = queries[r].key;
    values[r] = queries[r].value;
  }
  const size_t key_words = PackedPairs(packed.head_dim, 0) * kBlockSlots,
               words = PackedPairs(packed.head_dim, packed.value_stride) * kBlockSlots;
  constexpr int kWide = kRows == 1 ? std::min(4, kBlockSlots / kLanes) : kVectors;
  for (int s = 0; s < kBlockSlots; s += kWide * kLanes) {
    V sum[kRows][kWide];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Zero(d);
    }
    const uint32_t* const at = block + s;
    const auto add = [&]<bool kFirst>(std::bool_constant<kFirst>) HWY_ATTR {
      AddDots<kRows, kWide, kFirst>(values, packed.value_stride, at + key_words,
                                    at + words + key_words, sum);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kWide; ++v) {
          sum[r][v] = hn::Mul(sum[r][v], hn::Set(d, packed.value_scale));
        }
      }
      AddDots<kRows, kWide, kFirst>(keys, packed.head_dim, at, at + words, sum);
    };
    kAhead&& s == 0 ? add(std::true_type()) : add(std::false_type());
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) {
        hn::StoreU(sum[r][v], d, dots + r * kBlockSlots + s + v * kLanes);
      }
    }
  }
}

void DotBlock(const PackedCandidates& packed, std::span<const LowerBoundQuery> queries,
              const uint32_t* block, float* dots) {
  for (size_t r = 0; r < queries.size();) {
    const bool whole = queries.size() - r >= kRowTile;
    const auto dot = whole ? (r == 0 ? DotRows<kRowTile, true> : DotRows<kRowTile, false>)
                           : (r == 0 ? DotRows<1, true> : DotRows<1, false>);
    dot(packed, queries.data() + r, block, dots + r * kBlockSlots);
    r += whole ? kRowTile : 1;
  }
}

double SquaredNorm(const float* x, int n) {
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += static_cast<double>(x[c]) * x[c];
  return sum;
}

void FillLowerBounds(const PackedCandidates& packed, std::span<const LowerBoundQuery> queries,
                     uint32_t* scratch) {
  const D d;
  float squares[kMaxLowerBoundQueries];
  for (size_t r = 0; r < queries.size(); ++r) {
    squares[r] =
        static_cast<float>(SquaredNorm(queries[r].key, packed.head_dim) +
                           packed.value_scale * SquaredNorm(queries[r].value, packed.value_stride));
  }
  alignas(64) float dots[kMaxLowerBoundQueries * kBlockSlots];
  const V minus_two = hn::Set(d, -2.0f), whole = hn::Set(d, 1 - kSlack), tiny = hn::Set(d, kTiny),
          infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  std::optional<Bf16Dots> bf16_dots;
  if (HasBf16Dots()) bf16_dots.emplace(packed, queries, scratch);
  const uint32_t* block = packed.pairs;
  const size_t words = PackedPairs(packed.head_dim, packed.value_stride) * kBlockSlots;
  for (size_t b = 0; b < packed.n_blocks; ++b, block += words) {
    if (bf16_dots) {
      bf16_dots->Multiply(block, dots);
    } else {
      DotBlock(packed, queries, block, dots);
    }
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const size_t at = b * kBlockSlots + static_cast<size_t>(s);
      const V others = hn::LoadU(d, packed.squares + at);
      for (size_t r = 0; r < queries.size(); ++r) {
        const V dot = hn::LoadU(d, dots + r * kBlockSlots + static_cast<size_t>(s));
        const V both = hn::Add(others, hn::Set(d, squares[r]));
        const V lower_bound = hn::Sub(hn::MulAdd(minus_two, dot, hn::Mul(both, whole)), tiny);
        // A bound that is not finite is useless: it becomes 0.
        const auto known = hn::And(hn::Gt(lower_bound, hn::Zero(d)), hn::Lt(lower_bound, infinity));
        hn::StoreU(hn::IfThenElseZero(known, lower_bound), d, queries[r].lower_bounds + at);
      }
    }
  }
}

void MoveLowerBounds(const float* of_y, float share, float apart, std::span<float> of_x) {
  const D d;
  // Relative rounding error of the sum of these three terms stays below this.
  constexpr float kRounding = 1e-6f;
  const V s = hn::Set(d, share), rest = hn::Set(d, 1 - share),
          less = hn::Set(d, share * (1 - share) * apart + kRounding * apart),
          rounding = hn::Set(d, kRounding);
  for (size_t i = 0; i < of_x.size(); i += kLanes) {
    const V x = hn::LoadU(d, of_x.data() + i), y = hn::LoadU(d, of_y + i);
    const V whole = hn::Sub(hn::MulAdd(rest, x, hn::Mul(s, y)), less);
    const V lower_bound = hn::NegMulAdd(rounding, hn::Add(x, y), whole);
    hn::StoreU(hn::IfThenElseZero(hn::Gt(lower_bound, hn::Zero(d)), lower_bound), d,
               of_x.data() + i);
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {

HWY_EXPORT(HasVectors);
HWY_EXPORT(PackBlock);
HWY_EXPORT(FillLowerBounds);
HWY_EXPORT(MoveLowerBounds);

bool HasDistanceLowerBounds() { return HWY_DYNAMIC_DISPATCH(HasVectors)(); }

void PackCandidatesCpu(std::span<const CandidateBlock> blocks, const PackedCandidates& packed) {
  const size_t words = PackedPairs(packed.head_dim, packed.value_stride) * kBlockSlots;
  for (size_t b = 0; b < blocks.size(); ++b) {
    HWY_DYNAMIC_DISPATCH(PackBlock)
    (blocks[b], packed, packed.pairs + b * words, packed.squares + b * kBlockSlots);
  }
}

void DistanceLowerBoundsCpu(const PackedCandidates& packed,
                            std::span<const LowerBoundQuery> queries, uint32_t* scratch) {
  HWY_DYNAMIC_DISPATCH(FillLowerBounds)(packed, queries, scratch);
}

void MoveLowerBoundsCpu(const float* of_y, float share, float apart, std::span<float> of_x) {
  HWY_DYNAMIC_DISPATCH(MoveLowerBounds)(of_y, share, apart, of_x);
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
