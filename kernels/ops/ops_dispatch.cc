#include "base/check.h"
#include "kernels/common/dispatch.h"
#include "kernels/ops/ops.h"
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

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows) {
  Check(IsMatrix(x, DType::kF32), "RmsNorm: x is a float32 matrix");
  Check(weight.dtype == DType::kF32 && weight.shape == Shape{x.shape[1]},
        "RmsNorm: one float32 weight a column");
  const int64_t n_rows = rows.empty() ? x.shape[0] : static_cast<int64_t>(rows.size());
  Check(IsActivation(y) && y.shape == Shape{n_rows, x.shape[1]}, "RmsNorm: y has a row for each");
  Dispatch<ref::RmsNorm, cpu::RmsNorm, cuda::RmsNorm>(context, x, weight, eps, y, rows);
}

void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale) {
  CheckHeadRows(x);
  Dispatch<ref::UnitNorm, cpu::UnitNorm, cuda::UnitNorm>(context, x, scale);
}

void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table) {
  CheckHeadRows(x);
  Check(x.head_dim == table.head_dim(), "Rope: the table is for heads of this size");
  Check(static_cast<int64_t>(positions.size()) == x.n_rows, "Rope: one position a row");
  Dispatch<ref::Rope, cpu::Rope, cuda::Rope>(context, x, positions, table);
}

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  CheckHeadRows(prep.queries);
  CheckHeadRows(prep.keys);
  Check(prep.queries.n_rows == prep.keys.n_rows && prep.queries.head_dim == prep.keys.head_dim,
        "PrepareHeads: as many keys as queries, of one size");
  if (prep.rope != nullptr) {
    Check(prep.rope->head_dim() == prep.keys.head_dim, "PrepareHeads: a table for this head_dim");
    Check(static_cast<int64_t>(prep.positions.size()) == prep.keys.n_rows,
          "PrepareHeads: one position a row");
  }
  Dispatch<PrepareHeadsOnHost, PrepareHeadsOnHost, cuda::PrepareHeads>(context, prep);
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
