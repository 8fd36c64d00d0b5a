// y[n, out] (+)= x[n, in] W^T, W [out, in], with Highway: MakeSimdProduct.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/common/highway_targets.h"
#include "kernels/common/weight_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/matmul_simd_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/common/load_wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
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

// y [n, columns] (+)= x [n, in] . weights [in, PanelColumns()], rows of y y_stride apart.
template <class T>
struct PanelTask {
  const float* x;
  int64_t n, in;
  const T* weights;
  float* y;
  int64_t y_stride, columns;
  bool accumulate;
};

template <int kRows, class T>
HWY_INLINE void Tile(const PanelTask<T>& task, int64_t first_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = task.in;
  const float* x = task.x + first_row * in;
  V sum[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < in; ++i) {
    V w[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      w[v] = LoadWide(d, task.weights + (i * kPanelVectors + v) * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, x[r * in + i]);
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = hn::MulAdd(factor, w[v], sum[r][v]);
    }
  }
  HWY_ALIGN float row[kPanelVectors * hn::MaxLanes(d)];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) hn::Store(sum[r][v], d, row + v * lanes);
    float* y = task.y + (first_row + r) * task.y_stride;
    for (int64_t c = 0; c < task.columns; ++c) y[c] = task.accumulate ? y[c] + row[c] : row[c];
  }
}

// Multiplies tiles of kRows rows, and the rest in smaller tiles.
template <int kRows, class T>
void Tiles(const PanelTask<T>& task, int64_t row) {
  for (; row + kRows <= task.n; row += kRows) Tile<kRows>(task, row);
  if constexpr (kRows > 1) Tiles<(kRows > 2 ? kRows - 2 : 1)>(task, row);
}

template <class T>
void MultiplyPanel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  const int64_t in = x.shape[1], out = y.shape[1], columns = PanelColumns();
  Tiles<kRowTile>(PanelTask<T>{.x = x.as<float>(),
                               .n = x.shape[0],
                               .in = in,
                               .weights = packed.as<T>() + panel * in * columns,
                               .y = y.as<float>() + panel * columns,
                               .y_stride = out,
                               .columns = std::min(columns, out - panel * columns),
                               .accumulate = accumulate},
                  0);
}

// Multiplies one panel of packed [panels, in, columns] with x [n, in] F32.
void Panel(TensorView x, TensorView packed, TensorView y, int64_t panel, bool accumulate) {
  const auto run = packed.dtype == DType::kF32 ? MultiplyPanel<float> : MultiplyPanel<BF16>;
  run(x, packed, y, panel, accumulate);
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(PanelColumns);
HWY_EXPORT(Panel);

// Packs to `to` [panels, in, columns].
template <class T>
void Pack(const StackedWeights& weights, int64_t columns, T* to) {
  std::vector<T> row(static_cast<size_t>(weights.in));
  for (int64_t o = 0; o < weights.out; ++o) {
    CopyRow(weights, o, row.data());
    T* panel = to + o / columns * columns * weights.in + o % columns;
    for (int64_t i = 0; i < weights.in; ++i) panel[i * columns] = row[i];
  }
}

}  // namespace

namespace cpu {

Product MakeSimdProduct(const StackedWeights& weights) {
  const int64_t columns = HWY_DYNAMIC_DISPATCH(PanelColumns)();
  const int64_t n_panels = (weights.out + columns - 1) / columns;
  const size_t bytes = static_cast<size_t>(n_panels * columns) * weights.row_bytes();
  const std::shared_ptr<std::byte> memory = WeightMemory(bytes);
  std::memset(memory.get(), 0, bytes);  // the last panel's missing columns
  const TensorView packed = {memory.get(), weights.compute, {n_panels, weights.in, columns}};
  if (weights.compute == DType::kF32) {
    Pack(weights, columns, packed.as<float>());
  } else {
    Pack(weights, columns, packed.as<BF16>());
  }
  const auto apply = [memory, packed](DeviceContext& context, TensorView x, TensorView y,
                                      bool accumulate) {
    ScratchScope scratch(context);
    if (x.dtype == DType::kBF16) {
      const auto elements = static_cast<size_t>(x.shape.elements());
      float* wide = scratch.Allocate<float>(elements);
      std::transform(x.as<BF16>(), x.as<BF16>() + elements, wide,
                     [](BF16 v) { return ToFloat(v); });
      x.data = wide;
    }
    const int64_t panel_work = x.shape[0] * packed.shape[1] * packed.shape[2];
    ParallelRows(context, packed.shape[0], panel_work, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        HWY_DYNAMIC_DISPATCH(Panel)(x, packed, y, p, accumulate);
      }
    });
  };
  return {bytes, apply};
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
