#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/sample_device.h"

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
  const long double factor = spec.factors.empty() ? 1 : spec.factors[i];
  const auto phase = static_cast<Phase>(std::ldexp(factor * turns, 128));
  return backwards ? -phase : phase;
}

void CheckElementwise(const TensorView& x, const TensorView& y, const char* what) {
  Check(IsMatrix(x, DType::kF32) && IsActivation(y) && x.shape == y.shape, what);
}

}  // namespace

namespace {

void Norm(DeviceContext& context, const TensorView& x, const NormWeights& weights,
          const TensorView& y, std::span<const int32_t> rows, bool is_centered) {
  const int64_t width = x.shape[1];
  const int64_t n_rows = rows.empty() ? x.shape[0] : static_cast<int64_t>(rows.size());
  Check(IsMatrix(x, DType::kF32), "norm: x is a float32 matrix");
  Check(IsVector(weights.weight, width), "norm: one float32 weight a column");
  Check((weights.bias.data == nullptr && !is_centered) || IsVector(weights.bias, width),
        "norm: one float32 bias a column");
  Check(IsActivation(y) && y.shape == Shape{n_rows, width}, "norm: y has a row for each");
  Dispatch<cpu::Normalize, cuda::Normalize>(
      context, NormTask{is_centered, n_rows, width, x.as<float>(),
                        rows.empty() ? nullptr : rows.data(), weights.weight.as<float>(),
                        weights.bias.as<float>(), weights.eps, ToActivations(y)});
}

// The map of y alone; its other operands are added.
RowMap Onto(const TensorView& y, RowMap::Fn fn) {
  return {.fn = fn,
          .n_rows = y.shape[0],
          .width = y.shape[1],
          .y = ToActivations(y),
          .y_stride = y.shape[1]};
}

void Map(DeviceContext& context, const RowMap& map) {
  Dispatch<cpu::MapRows, cuda::MapRows>(context, map);
}

// SwiGlu and GeGlu.
void MapGated(DeviceContext& context, TensorView gate_up, TensorView y, RowMap::Fn fn) {
  Check(IsMatrix(gate_up, DType::kF32), "SwiGlu: gate_up is a float32 matrix");
  Check(IsActivation(y) && gate_up.shape == Shape{y.shape[0], 2 * y.shape[1]},
        "SwiGlu: gate_up has two columns for each of y");
  RowMap map = Onto(y, fn);
  map.a = gate_up.as<float>();
  map.b = map.a + map.width;
  map.a_stride = map.b_stride = 2 * map.width;
  Map(context, map);
}

}  // namespace

void RmsNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows) {
  Norm(context, x, weights, y, rows, /*is_centered=*/false);
}

void LayerNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
               std::span<const int32_t> rows) {
  Norm(context, x, weights, y, rows, /*is_centered=*/true);
}

RopeTable::RopeTable(DeviceContext& context, const RopeSpec& spec) : spec_(spec) {
  Check(spec.dims > 0 && spec.dims % 2 == 0, "RopeTable: dims are even");
  Check(spec.theta >= 1, "RopeTable: theta is at least 1");
  Check(spec.factors.empty() || std::ssize(spec.factors) == n_pairs(),
        "RopeTable: a factor for each pair");
  std::vector<Phase> frequencies(static_cast<size_t>(n_pairs()));
  for (int i = 0; i < n_pairs(); ++i) frequencies[i] = Frequency(spec, i);
  frequencies_ = context.Upload(frequencies);
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

void GrowQueries(DeviceContext& context, const HeadRows& queries, const QueryGrowth& growth,
                 std::span<const int64_t> positions, bool round_to_bf16) {
  CheckHeadRows(queries);
  Check(growth.floor_tokens > 0, "GrowQueries: floor_tokens is positive");
  Check(static_cast<int64_t>(positions.size()) == queries.n_rows,
        "GrowQueries: one position a row");
  Dispatch<cpu::GrowQueries, cuda::GrowQueries>(context, queries, growth, positions, round_to_bf16);
}

void AddSinusoids(DeviceContext& context, const RopeTable& table,
                  std::span<const int64_t> positions, float scale, TensorView y) {
  Check(table.spec().layout == RopeSpec::Layout::kHalves && table.spec().amplitude == 1,
        "AddSinusoids: a table of halves");
  Check(IsMatrix(y, DType::kF32) &&
            y.shape == Shape{static_cast<int64_t>(positions.size()), table.spec().dims},
        "AddSinusoids: y is a float32 matrix of the table's width, with a row a position");
  Dispatch<cpu::AddSinusoids, cuda::AddSinusoids>(context, table, positions, scale, y);
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  MapGated(context, gate_up, y, RowMap::kSwiGlu);
}

void GeGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  MapGated(context, gate_up, y, RowMap::kGeGlu);
}

void SquaredRelu(DeviceContext& context, TensorView x, TensorView y) {
  CheckElementwise(x, y, "SquaredRelu: y has the shape of x, which is float32");
  RowMap map = Onto(y, RowMap::kSquaredRelu);
  map.a = x.as<float>(), map.a_stride = map.width;
  Map(context, map);
}

void AddScaled(DeviceContext& context, TensorView x, float a, TensorView y, float b) {
  CheckElementwise(x, y, "AddScaled: x and y are float32 matrices of one shape");
  Check(y.dtype == DType::kF32, "AddScaled: y is float32");
  RowMap map = Onto(x, RowMap::kAddScaled);
  map.a = y.as<float>(), map.a_stride = map.width;
  map.p = a, map.q = b;
  Map(context, map);
}

void AddBias(DeviceContext& context, TensorView x, TensorView bias, float scale) {
  Check(IsMatrix(x, DType::kF32), "AddBias: x is a float32 matrix");
  Check(bias.data == nullptr || IsVector(bias, x.shape[1]), "AddBias: one float32 bias a column");
  RowMap map = Onto(x, RowMap::kAddBias);
  map.c = bias.as<float>();
  map.p = scale;
  Map(context, map);
}

void MixTowards(DeviceContext& context, const Mix& mix) {
  Check(mix.x_stride >= mix.width, "MixTowards: rows do not overlap");
  Check((mix.gate == nullptr) == (mix.bias == nullptr), "MixTowards: a gate has a bias");
  Map(context, {.fn = RowMap::kMixTowards,
                .n_rows = mix.n_rows,
                .width = mix.width,
                .y = {.f32 = mix.x},
                .y_stride = mix.x_stride,
                .a = mix.target,
                .a_stride = mix.width,
                .b = mix.gate,
                .b_stride = mix.width,
                .c = mix.bias,
                .p = mix.share});
}

void GateBySigmoid(DeviceContext& context, TensorView x, const float* gate, int64_t gate_stride) {
  Check(IsActivation(x) && gate_stride >= x.shape[1], "GateBySigmoid: a gate for every element");
  RowMap map = Onto(x, RowMap::kGate);
  map.a = gate, map.a_stride = gate_stride;
  Map(context, map);
}

void Copy(DeviceContext& context, TensorView x, TensorView y) {
  CheckElementwise(x, y, "Copy: y has the shape of x, which is float32");
  RowMap map = Onto(y, RowMap::kCopy);
  map.a = x.as<float>(), map.a_stride = map.width;
  Map(context, map);
}

void SoftCap(DeviceContext& context, TensorView x, float cap) {
  Check(IsMatrix(x, DType::kF32) && cap > 0, "SoftCap: a float32 matrix, and a cap above 0");
  RowMap map = Onto(x, RowMap::kSoftCap);
  map.p = cap;
  Map(context, map);
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

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  Check(logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.shape[1] > 0,
        "ReadLogits: logits are a float32 matrix");
  const int64_t n_rows = logits.shape[0], vocab = logits.shape[1];
  const auto is_row = [&](int64_t row) { return row >= 0 && row < n_rows; };
  const auto is_mask = [&](TokenMaskBits allowed) {
    return allowed.empty() || std::ssize(allowed) == (vocab + 31) / 32;
  };
  for (const RowDraw& draw : reading.draws) {
    Check(is_row(draw.row), "ReadLogits: a draw's row");
    Check(is_mask(draw.allowed), "ReadLogits: a draw's bit for each token");
  }
  for (const RowToken& token : reading.tokens) {
    Check(is_row(token.row) && token.id >= 0 && token.id < vocab, "ReadLogits: a token's row, id");
  }
  for (RowBest& best : reading.bests) {
    Check(is_row(best.row) && best.n > 0, "ReadLogits: a row and how many of its best");
    Check(is_mask(best.allowed), "ReadLogits: a bit for each token");
    best.best.resize(
        static_cast<size_t>(std::min(int64_t{best.n}, CountAllowed(best.allowed, vocab))));
  }
  reading.log_sum_exp.resize(static_cast<size_t>(n_rows));
  Dispatch<cpu::ReadLogits, cuda::ReadLogits>(context, logits, reading);
}

}  // namespace ovq::kernels
