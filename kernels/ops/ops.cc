#include "kernels/ops/ops.h"

#include "kernels/common/check.h"
#include "kernels/common/dispatch.h"
#include "kernels/ops/ops_device.h"

namespace ovq {
namespace {

bool IsMatrix(const TensorView& x, DType dtype) {
  return x.shape.rank() == 2 && x.dtype == dtype && (x.data != nullptr || x.bytes() == 0);
}

bool IsActivation(const TensorView& y) {
  return IsMatrix(y, DType::kF32) || IsMatrix(y, DType::kBF16);
}

void CheckHeadRows(const HeadRows& x) {
  Check(x.n_rows >= 0 && x.n_heads > 0 && x.head_dim > 0, "heads: sizes are positive");
  Check(x.row_stride >= int64_t{x.n_heads} * x.head_dim, "heads: rows do not overlap");
}

}  // namespace

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y) {
  Check(IsMatrix(x, DType::kF32), "RmsNorm: x is a float32 matrix");
  Check(weight.dtype == DType::kF32 && weight.shape == Shape{x.shape[1]},
        "RmsNorm: one float32 weight a column");
  Check(IsActivation(y) && y.shape == x.shape, "RmsNorm: y has the shape of x");
  Dispatch<ref::RmsNorm, cpu::RmsNorm, cuda::RmsNorm>(context, x, weight, eps, y);
}

void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale) {
  CheckHeadRows(x);
  Dispatch<ref::UnitNorm, cpu::UnitNorm, cuda::UnitNorm>(context, x, scale);
}

void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          double theta) {
  CheckHeadRows(x);
  Check(x.head_dim % 2 == 0, "Rope: head_dim is even");
  Check(static_cast<int64_t>(positions.size()) == x.n_rows, "Rope: one position a row");
  Check(theta >= 1, "Rope: theta is at least 1");
  Dispatch<ref::Rope, cpu::Rope, cuda::Rope>(context, x, positions, theta);
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  Check(IsMatrix(gate_up, DType::kF32), "SwiGlu: gate_up is a float32 matrix");
  Check(IsActivation(y) && gate_up.shape == Shape{y.shape[0], 2 * y.shape[1]},
        "SwiGlu: gate_up has two columns for each of y");
  Dispatch<ref::SwiGlu, cpu::SwiGlu, cuda::SwiGlu>(context, gate_up, y);
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  Check(IsActivation(table) || IsMatrix(table, DType::kF16), "Embed: the table is a float matrix");
  Check(IsMatrix(y, DType::kF32), "Embed: y is a float32 matrix");
  Check(y.shape == Shape{static_cast<int64_t>(ids.size()), table.shape[1]},
        "Embed: one row of the table's width an id");
  Dispatch<ref::Embed, cpu::Embed, cuda::Embed>(context, table, ids, y);
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  Check(IsMatrix(x, DType::kF32) && x.shape[1] > 0, "LogSumExp: x is a float32 matrix");
  Dispatch<ref::LogSumExp, cpu::LogSumExp, cuda::LogSumExp>(context, x, out);
}

}  // namespace ovq
