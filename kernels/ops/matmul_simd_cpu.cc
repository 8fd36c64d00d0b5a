// y[n, out] (+)= x[n, in] W^T, W [out, in], with Highway: SimdProduct.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "kernels/common/highway_targets.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matmul_simd_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

// A panel is two vectors of columns. Six rows times a panel are twelve sums in registers: enough to
// hide the latency of a multiply-add, and they fit the sixteen registers of AVX2.
constexpr int kPanelVectors = 2;
constexpr int kRowTile = 6;

int64_t PanelColumns() { return kPanelVectors * static_cast<int64_t>(hn::Lanes(d)); }

V LoadWide(const float* p) { return hn::Load(d, p); }
V LoadWide(const BF16* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// y[r][0..columns) (+)= x[r] . panel for kRows rows; panel [in, PanelColumns()].
template <int kRows, class T>
HWY_INLINE void Tile(const float* x, int64_t in, const T* panel, float* y, int64_t y_stride,
                     int64_t columns, bool accumulate) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < in; ++i) {
    V w[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      w[v] = LoadWide(panel + (i * kPanelVectors + v) * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, x[r * in + i]);
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::MulAdd(factor, w[v], sum[r][v]);
    }
  }
  HWY_ALIGN float row[kPanelVectors * hn::MaxLanes(d)];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) hn::Store(sum[r][v], d, row + v * lanes);
    float* target = y + r * y_stride;
    for (int64_t c = 0; c < columns; ++c) target[c] = accumulate ? target[c] + row[c] : row[c];
  }
}

template <class T>
void Panel(const float* x, int64_t n_rows, int64_t in, const T* panel, float* y, int64_t y_stride,
           int64_t columns, bool accumulate) {
  int64_t r = 0;
  for (; r + kRowTile <= n_rows; r += kRowTile) {
    Tile<kRowTile>(x + r * in, in, panel, y + r * y_stride, y_stride, columns, accumulate);
  }
  if (n_rows - r >= 4) {
    Tile<4>(x + r * in, in, panel, y + r * y_stride, y_stride, columns, accumulate);
    r += 4;
  }
  if (n_rows - r >= 2) {
    Tile<2>(x + r * in, in, panel, y + r * y_stride, y_stride, columns, accumulate);
    r += 2;
  }
  if (n_rows - r >= 1) {
    Tile<1>(x + r * in, in, panel, y + r * y_stride, y_stride, columns, accumulate);
  }
}
void PanelF32(const float* x, int64_t n_rows, int64_t in, const float* panel, float* y,
              int64_t y_stride, int64_t columns, bool accumulate) {
  Panel(x, n_rows, in, panel, y, y_stride, columns, accumulate);
}
void PanelBF16(const float* x, int64_t n_rows, int64_t in, const BF16* panel, float* y,
               int64_t y_stride, int64_t columns, bool accumulate) {
  Panel(x, n_rows, in, panel, y, y_stride, columns, accumulate);
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {
namespace {

HWY_EXPORT(PanelColumns);
HWY_EXPORT(PanelF32);
HWY_EXPORT(PanelBF16);

constexpr size_t kAlignment = 64;

// packed [panels, in, columns], zero where the last panel has no column.
template <class T>
void Pack(const StackedWeights& weights, int64_t columns, T* packed) {
  std::vector<T> row(static_cast<size_t>(weights.in));
  for (int64_t o = 0; o < weights.out; ++o) {
    CopyRow(weights, o, row.data());
    T* panel = packed + o / columns * columns * weights.in + o % columns;
    for (int64_t i = 0; i < weights.in; ++i) panel[i * columns] = row[static_cast<size_t>(i)];
  }
}

}  // namespace

void SimdProduct::AlignedDelete::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t(kAlignment));
}

SimdProduct::SimdProduct(const StackedWeights& weights)
    : in_(weights.in), out_(weights.out), compute_(weights.compute) {
  const int64_t columns = HWY_DYNAMIC_DISPATCH(PanelColumns)();
  const int64_t padded_out = (out_ + columns - 1) / columns * columns;
  bytes_ = static_cast<size_t>(padded_out * in_) * DTypeBytes(compute_);
  weights_.reset(new (std::align_val_t(kAlignment)) std::byte[bytes_]());
  if (compute_ == DType::kF32) {
    Pack(weights, columns, reinterpret_cast<float*>(weights_.get()));
  } else {
    Pack(weights, columns, reinterpret_cast<BF16*>(weights_.get()));
  }
}

void SimdProduct::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const {
  const int64_t n = x.shape[0];
  const int64_t columns = HWY_DYNAMIC_DISPATCH(PanelColumns)();
  const int64_t n_panels = (out_ + columns - 1) / columns;
  ScratchScope scratch(context);
  const float* wide = x.as<float>();
  if (compute_ == DType::kBF16) {
    float* copy = scratch.Allocate<float>(static_cast<size_t>(n * in_));
    std::transform(x.as<BF16>(), x.as<BF16>() + n * in_, copy, [](BF16 v) { return ToFloat(v); });
    wide = copy;
  }
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const std::byte* panel =
          weights_.get() + static_cast<size_t>(p * columns * in_) * DTypeBytes(compute_);
      float* out = y.as<float>() + p * columns;
      const int64_t width = std::min(columns, out_ - p * columns);
      if (compute_ == DType::kF32) {
        HWY_DYNAMIC_DISPATCH(PanelF32)
        (wide, n, in_, reinterpret_cast<const float*>(panel), out, out_, width, accumulate);
      } else {
        HWY_DYNAMIC_DISPATCH(PanelBF16)
        (wide, n, in_, reinterpret_cast<const BF16*>(panel), out, out_, width, accumulate);
      }
    }
  };
  ParallelRows(context, n_panels, n * columns * in_, run);
}

}  // namespace ovq
#endif  // HWY_ONCE
