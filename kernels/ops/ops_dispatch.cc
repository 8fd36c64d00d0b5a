#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
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

// theta^(-2i / head_dim) radians a position.
Phase Frequency(double theta, int i, int head_dim) {
  const long double exponent = -2.0L * i / head_dim;
  const long double turns =
      std::pow(static_cast<long double>(theta), exponent) / (2 * std::numbers::pi_v<long double>);
  return static_cast<Phase>(std::ldexp(turns, 128));
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

RopeTable::RopeTable(DeviceContext& context, double theta, int head_dim)
    : theta_(theta), head_dim_(head_dim) {
  Check(head_dim > 0 && head_dim % 2 == 0, "RopeTable: head_dim is even");
  Check(theta >= 1, "RopeTable: theta is at least 1");
  std::vector<Phase> frequencies(static_cast<size_t>(head_dim / 2));
  for (int i = 0; i < head_dim / 2; ++i) frequencies[i] = Frequency(theta, i, head_dim);
  frequencies_ = context.Upload(frequencies.data(), frequencies.size() * sizeof(Phase));
}

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  CheckHeadRows(prep.queries);
  if (prep.keys.n_heads > 0) {
    CheckHeadRows(prep.keys);
    Check(prep.queries.n_rows == prep.keys.n_rows && prep.queries.head_dim == prep.keys.head_dim,
          "PrepareHeads: as many keys as queries, of one size");
  }
  if (prep.rope != nullptr) {
    Check(prep.rope->head_dim() == prep.queries.head_dim,
          "PrepareHeads: a table for this head_dim");
    Check(static_cast<int64_t>(prep.positions.size()) == prep.queries.n_rows,
          "PrepareHeads: one position a row");
  }
  Dispatch<ref::PrepareHeads, cpu::PrepareHeads, cuda::PrepareHeads>(context, prep);
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
