#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels {
namespace {

bool IsMatrix(const TensorView& x, DType dtype) {
  return x.shape.rank() == 2 && x.dtype == dtype && (x.data != nullptr || x.bytes() == 0);
}

bool IsVector(const TensorView& x, int64_t n) {
  return x.data != nullptr && x.dtype == DType::kF32 && x.shape == Shape{n};
}

bool IsActivation(const TensorView& y) {
  return IsMatrix(y, DType::kF32) || IsMatrix(y, DType::kBF16);
}

void CheckHeadRows(const HeadRows& x) {
  Check(x.n_rows >= 0 && x.n_heads > 0 && x.head_dim > 0, "heads: sizes are positive");
  Check(x.row_stride >= int64_t{x.n_heads} * x.head_dim, "heads: rows do not overlap");
}

// The frequency of pair i, see RopeSpec, converted from radians per position to parts of a turn.
Phase Frequency(const RopeSpec& spec, int i) {
  const bool backwards = spec.layout == RopeSpec::Layout::kPairs;
  const int n = spec.dims / 2;
  const long double exponent = !backwards ? -2.0L * i / spec.dims
                               : n == 1   ? 0
                                          : -1.0L * i / (n - 1);
  const long double turns = std::pow(static_cast<long double>(spec.theta), exponent) /
                            (2 * std::numbers::pi_v<long double>);
  const auto phase = static_cast<Phase>(std::ldexp(turns, 128));
  return backwards ? -phase : phase;
}

void CheckNorm(const TensorView& x, const NormWeights& weights, const TensorView& y,
               std::span<const int32_t> rows) {
  Check(IsMatrix(x, DType::kF32), "norm: x is a float32 matrix");
  Check(IsVector(weights.weight, x.shape[1]), "norm: one float32 weight a column");
  Check(weights.bias.data == nullptr || IsVector(weights.bias, x.shape[1]),
        "norm: one float32 bias a column");
  const int64_t n_rows = rows.empty() ? x.shape[0] : static_cast<int64_t>(rows.size());
  Check(IsActivation(y) && y.shape == Shape{n_rows, x.shape[1]}, "norm: y has a row for each");
}

void CheckElementwise(const TensorView& x, const TensorView& y, const char* what) {
  Check(IsMatrix(x, DType::kF32) && IsActivation(y) && x.shape == y.shape, what);
}

}  // namespace

void RmsNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows) {
  CheckNorm(x, weights, y, rows);
  Dispatch<cpu::RmsNorm, cuda::RmsNorm>(context, x, weights, y, rows);
}

void LayerNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
               std::span<const int32_t> rows) {
  CheckNorm(x, weights, y, rows);
  Check(weights.bias.data != nullptr, "LayerNorm: has a bias");
  Dispatch<cpu::LayerNorm, cuda::LayerNorm>(context, x, weights, y, rows);
}

RopeTable::RopeTable(DeviceContext& context, const RopeSpec& spec) : spec_(spec) {
  Check(spec.dims > 0 && spec.dims % 2 == 0, "RopeTable: dims are even");
  Check(spec.theta >= 1, "RopeTable: theta is at least 1");
  std::vector<Phase> frequencies(static_cast<size_t>(n_pairs()));
  for (int i = 0; i < n_pairs(); ++i) frequencies[i] = Frequency(spec, i);
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
    const RopeSpec& spec = prep.rope->spec();
    Check(spec.dims <= prep.queries.head_dim, "PrepareHeads: a table for this head_dim");
    Check(static_cast<int64_t>(prep.positions.size()) == prep.queries.n_rows,
          "PrepareHeads: one position a row");
  }
  Check((prep.norm != HeadNorm::kLayer && prep.norm != HeadNorm::kRms) ||
            (prep.query_norm && (prep.key_norm || prep.keys.n_heads == 0)),
        "PrepareHeads: a norm of this kind has weights");
  Dispatch<cpu::PrepareHeads, cuda::PrepareHeads>(context, prep);
}

void AddSinusoids(DeviceContext& context, const RopeTable& table,
                  std::span<const int64_t> positions, float scale, TensorView y) {
  Check(table.spec().layout == RopeSpec::Layout::kHalves, "AddSinusoids: a table of halves");
  Check(IsMatrix(y, DType::kF32) &&
            y.shape == Shape{static_cast<int64_t>(positions.size()), table.spec().dims},
        "AddSinusoids: y is a float32 matrix of the table's width, with a row a position");
  Dispatch<cpu::AddSinusoids, cuda::AddSinusoids>(context, table, positions, scale, y);
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  Check(IsMatrix(gate_up, DType::kF32), "SwiGlu: gate_up is a float32 matrix");
  Check(IsActivation(y) && gate_up.shape == Shape{y.shape[0], 2 * y.shape[1]},
        "SwiGlu: gate_up has two columns for each of y");
  Dispatch<cpu::SwiGlu, cuda::SwiGlu>(context, gate_up, y);
}

void SquaredRelu(DeviceContext& context, TensorView x, TensorView y) {
  CheckElementwise(x, y, "SquaredRelu: y has the shape of x, which is float32");
  Dispatch<cpu::SquaredRelu, cuda::SquaredRelu>(context, x, y);
}

void AddScaled(DeviceContext& context, TensorView x, float a, TensorView y, float b) {
  CheckElementwise(x, y, "AddScaled: x and y are float32 matrices of one shape");
  Check(y.dtype == DType::kF32, "AddScaled: y is float32");
  Dispatch<cpu::AddScaled, cuda::AddScaled>(context, x, a, y, b);
}

void AddBias(DeviceContext& context, TensorView x, TensorView bias, float scale) {
  Check(IsMatrix(x, DType::kF32), "AddBias: x is a float32 matrix");
  Check(bias.data == nullptr || IsVector(bias, x.shape[1]), "AddBias: one float32 bias a column");
  Dispatch<cpu::AddBias, cuda::AddBias>(context, x, bias, scale);
}

void MixTowards(DeviceContext& context, const Mix& mix) {
  Check(mix.x_stride >= mix.width, "MixTowards: rows do not overlap");
  Check((mix.gate == nullptr) == (mix.bias == nullptr), "MixTowards: a gate has a bias");
  Dispatch<cpu::MixTowards, cuda::MixTowards>(context, mix);
}

void GateBySigmoid(DeviceContext& context, TensorView x, const float* gate, int64_t gate_stride) {
  Check(IsActivation(x) && gate_stride >= x.shape[1], "GateBySigmoid: a gate for every element");
  Dispatch<cpu::GateBySigmoid, cuda::GateBySigmoid>(context, x, gate, gate_stride);
}

void Copy(DeviceContext& context, TensorView x, TensorView y) {
  CheckElementwise(x, y, "Copy: y has the shape of x, which is float32");
  Dispatch<cpu::Copy, cuda::Copy>(context, x, y);
}

void SoftCap(DeviceContext& context, TensorView x, float cap) {
  Check(IsMatrix(x, DType::kF32) && cap > 0, "SoftCap: a float32 matrix, and a cap above 0");
  Dispatch<cpu::SoftCap, cuda::SoftCap>(context, x, cap);
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  Check(IsActivation(table) || IsMatrix(table, DType::kF16), "Embed: the table is a float matrix");
  Check(IsActivation(y), "Embed: y is a matrix of float32 or bfloat16");
  Check(y.shape == Shape{static_cast<int64_t>(ids.size()), table.shape[1]},
        "Embed: one row of the table's width an id");
  Dispatch<cpu::Embed, cuda::Embed>(context, table, ids, y);
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  Check(IsMatrix(x, DType::kF32) && x.shape[1] > 0, "LogSumExp: x is a float32 matrix");
  Dispatch<cpu::LogSumExp, cuda::LogSumExp>(context, x, out);
}

}  // namespace ovq::kernels
