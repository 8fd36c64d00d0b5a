// Dot products and matrix-vector products for a head's state on the CPU. The order of each sum is
// the same on every vector width. Matrix rows and vectors are padded with zeros to a multiple of
// kSumLanes elements. For files that Highway compiles once for each instruction set.
#include <cstdint>

#include "kernels/common/highway_targets.h"
#include "kernels/mixers/recurrent/padded.h"

// Include guard of Highway's -inl.h files: once for each target.
#if defined(OVQ_RECURRENT_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_RECURRENT_MATRIX_INL_H_
#undef OVQ_RECURRENT_MATRIX_INL_H_
#else
#define OVQ_RECURRENT_MATRIX_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kSumLanes>;
using FloatVec = hn::Vec<Floats>;
inline constexpr int kLanes = HWY_LANES(float) < kSumLanes ? HWY_LANES(float) : kSumLanes;

// Sum of a vector's elements: the upper half is added to the lower half until one element is left.
template <class D>
HWY_INLINE float FoldLanes(D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return FoldLanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  (void)d;
  return hn::GetLane(v);
}

// Sum over a padded vector: element i goes to partial sum i % kSumLanes; FoldLanes' order joins the
// partial sums.
class LaneSums {
 public:
  static constexpr int kParts = kSumLanes / kLanes;

  HWY_INLINE LaneSums() {
    for (FloatVec& part : parts_) part = hn::Zero(Floats());
  }
  // Adds a[i] b[i] for the vectors whose elements belong to partial sums `part`.
  HWY_INLINE void Add(int part, FloatVec a, FloatVec b) {
    parts_[part] = hn::MulAdd(a, b, parts_[part]);
  }
  HWY_INLINE float Total() {
    for (int half = kParts / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) parts_[j] = hn::Add(parts_[j], parts_[j + half]);
    }
    return FoldLanes(Floats(), parts_[0]);
  }

 private:
  FloatVec parts_[kParts];
};

// Calls fn(i, part) for the vector at each i of n elements, n a multiple of kSumLanes. `part` is
// known at compile time, so sums stay in registers.
template <class Fn>
HWY_INLINE void ForEachLanes(int64_t n, Fn fn) {
  for (int64_t i = 0; i < n; i += kSumLanes) {
    for (int part = 0; part < LaneSums::kParts; ++part) fn(i + part * kLanes, part);
  }
}

HWY_INLINE float DotProduct(const float* a, const float* b, int64_t n) {
  const Floats d;
  LaneSums sums;
  ForEachLanes(n, [&](int64_t i, int part)
                      HWY_ATTR { sums.Add(part, hn::LoadU(d, a + i), hn::LoadU(d, b + i)); });
  return sums.Total();
}

// Update applied to a matrix before it is multiplied: M = decay M + left right^T.
struct Rank1Update {
  float decay;
  const float* left;   // [rows]
  const float* right;  // [stride]
};

// Sums of kWide vectors of columns.
template <bool kUpdates, int kWide>
struct ColumnSums {
  FloatVec decay, right[kWide], sums[2][kWide];

  HWY_INLINE ColumnSums(const Rank1Update& update, int64_t c) {
    const Floats d;
    decay = hn::Set(d, update.decay);
    for (int v = 0; v < kWide; ++v) {
      right[v] = kUpdates ? hn::LoadU(d, update.right + c + v * kLanes) : hn::Zero(d);
      sums[0][v] = sums[1][v] = hn::Zero(d);
    }
  }

  // `row` points to these columns of a matrix row, and becomes decay row + left right.
  HWY_INLINE void Add(int chain, float* HWY_RESTRICT row, float left, float x) {
    const Floats d;
    const FloatVec factor = hn::Set(d, x), written = hn::Set(d, left);
    for (int v = 0; v < kWide; ++v) {
      FloatVec value = hn::LoadU(d, row + v * kLanes);
      if constexpr (kUpdates) {
        value = hn::MulAdd(written, right[v], hn::Mul(decay, value));
        hn::StoreU(value, d, row + v * kLanes);
      }
      sums[chain][v] = hn::MulAdd(factor, value, sums[chain][v]);
    }
  }
};

// Order in which a product walks the rows. A matrix larger than the nearest cache leaves its last
// rows there, so products that alternate between down and up find them.
enum class RowOrder : uint8_t { kDown, kUp };

struct MatrixRows {
  float* begin;
  int64_t rows, stride;
  RowOrder order = RowOrder::kDown;
};

// Multiplies the columns from c on. Even and odd rows have separate chains of sums, which hide each
// other's latency.
template <bool kUpdates, int kWide>
HWY_INLINE void MultiplyColumns(const MatrixRows& m, int64_t c, const Rank1Update& update,
                                const float* x, float* out) {
  ColumnSums<kUpdates, kWide> columns(update, c);
  const bool down = m.order == RowOrder::kDown;
  const int64_t by = down ? 1 : -1;
  int64_t i = down ? 0 : m.rows - 1;
  float* row = m.begin + i * m.stride + c;
  const auto add = [&](int chain) HWY_ATTR {
    columns.Add(chain, row, kUpdates ? update.left[i] : 0.0f, x[i]);
    i += by;
    row += by * m.stride;
  };
  for (int64_t pair = 0; pair < m.rows / 2; ++pair) {
    add(0);
    add(1);
  }
  if (m.rows % 2 == 1) add(0);
  for (int v = 0; v < kWide; ++v) {
    hn::StoreU(hn::Add(columns.sums[0][v], columns.sums[1][v]), Floats(), out + c + v * kLanes);
  }
}

// Covers all columns, as many vectors at a time as the registers have room for sums.
template <bool kUpdates, int kWide = kLanes == 16 ? 8 : 4>
HWY_INLINE void Multiply(const MatrixRows& m, const Rank1Update& update, const float* x, float* out,
                         int64_t c = 0) {
  for (; c + kWide * kLanes <= m.stride; c += kWide * kLanes) {
    MultiplyColumns<kUpdates, kWide>(m, c, update, x, out);
  }
  if constexpr (kWide > 1) Multiply<kUpdates, kWide / 2>(m, update, x, out, c);
}

// out[c] = sum_i M[i][c] x[i] for M [rows, stride], x [rows], out [stride].
HWY_INLINE void MultiplyTransposed(const MatrixRows& m, const float* x, float* out) {
  Multiply<false>(m, {}, x, out);
}
// MultiplyTransposed after M has been updated, in one pass over M.
HWY_INLINE void UpdateAndMultiply(const MatrixRows& m, const Rank1Update& update, const float* x,
                                  float* out) {
  Multiply<true>(m, update, x, out);
}

}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
