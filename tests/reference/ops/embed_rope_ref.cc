// PrepareHeads, in place over x [n_rows, n_heads, d], the result of every line in float32:
//   u = norm(x) by HeadNorm;  x[i], x[j] = u[i] c - u[j] s, u[j] c + u[i] s for the pairs (i, j) of
//   the RopeSpec, c = amplitude cos a, s = amplitude sin a, a = position w
// GrowQueries: x[row] = (1 + scale ln(1 + floor((position + 1) / floor_tokens))) x[row]
// AddSinusoids: y[row] += scale [sin a | cos a], the angles of a table of halves
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>

#include "kernels/ops/ops_device.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

// weights: [2][n] for kLayer, [n] for kRms.
void NormHead(HeadNorm norm, float* x, int n, double scale, const float* weights, double eps) {
  double sum = 0, squares = 0, mean = 0;
  for (int i = 0; i < n; ++i) sum += x[i];
  if (norm == HeadNorm::kLayer) mean = sum / n;
  for (int i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  for (int i = 0; i < n; ++i) {
    double y = x[i];
    if (norm == HeadNorm::kUnit) y *= scale / std::sqrt(squares + 1e-6);
    if (norm == HeadNorm::kL2) y *= scale / (std::sqrt(squares) + 1e-5);
    if (norm == HeadNorm::kLayer) {
      y = (x[i] - mean) / std::sqrt(squares / n + 1e-5) * weights[i] + weights[n + i];
    }
    if (norm == HeadNorm::kRms) y = y / std::sqrt(squares / n + eps) * weights[i];
    if (norm == HeadNorm::kNone) y *= scale;
    x[i] = static_cast<float>(y);
  }
}

// RoPE of x [n_heads, head_dim] by the textbook formulas in long double, whose 64-bit fraction
// represents every position exactly (x86-64) and the angle to position * 2^-64.
void Rope(float* x, int n_heads, int head_dim, int64_t position, const RopeSpec& spec) {
  const bool halves = spec.layout == RopeSpec::Layout::kHalves;
  const bool backwards = spec.layout == RopeSpec::Layout::kPairs;
  const int n = spec.dims / 2;
  const long double theta = spec.theta;
  for (int i = 0; i < n; ++i) {
    const long double turned = position * (spec.factors.empty() ? 1.0L : spec.factors[i]);
    const long double angle = backwards
                                  ? -turned * std::pow(1 / theta, n == 1 ? 0 : 1.0L * i / (n - 1))
                                  : turned * std::pow(theta, -1.0L * i / n);
    double c = spec.amplitude * static_cast<double>(std::cos(angle));
    double s = spec.amplitude * static_cast<double>(std::sin(angle));
    if (spec.rounds_to_bf16) c = ToFloat(RoundToBF16(static_cast<float>(c)));
    if (spec.rounds_to_bf16) s = ToFloat(RoundToBF16(static_cast<float>(s)));
    const int low = halves ? i : 2 * i, high = halves ? i + n : 2 * i + 1;
    for (float* head = x; head < x + int64_t{n_heads} * head_dim; head += head_dim) {
      const double a = head[low], b = head[high];
      head[low] = static_cast<float>(a * c - b * s);
      head[high] = static_cast<float>(b * c + a * s);
    }
  }
}

}  // namespace

void PrepareHeads(DeviceContext&, const HeadPrep& prep) {
  const auto prepare = [&](const HeadRows& heads, const float* scale, const float* weights) {
    const int d = heads.head_dim;
    for (int64_t row = 0; row < heads.n_rows; ++row) {
      float* x = heads.data + row * heads.row_stride;
      for (int head = 0; head < heads.n_heads; ++head) {
        NormHead(prep.norm, x + int64_t{head} * d, d, scale ? scale[head] : 1.0, weights, prep.eps);
      }
      if (prep.rope) Rope(x, heads.n_heads, d, prep.positions[row], prep.rope->spec());
      for (int64_t i = 0; i < int64_t{heads.n_heads} * d && prep.round_to_bf16; ++i) {
        x[i] = ToFloat(RoundToBF16(x[i]));
      }
    }
  };
  prepare(prep.queries, prep.beta, prep.query_norm);
  prepare(prep.keys, nullptr, prep.key_norm);
}

void GrowQueries(DeviceContext&, const HeadRows& queries, const QueryGrowth& growth,
                 std::span<const int64_t> positions, bool round_to_bf16) {
  float* x = queries.data;
  for (int64_t position : positions) {
    const double floors =
        std::floor((static_cast<double>(position) + 1) / static_cast<double>(growth.floor_tokens));
    const double factor = std::log(floors + 1) * growth.scale + 1;
    for (int i = 0; i < queries.n_heads * queries.head_dim; ++i) {
      x[i] = static_cast<float>(x[i] * factor);
      if (round_to_bf16) x[i] = ToFloat(RoundToBF16(x[i]));
    }
    x += queries.row_stride;
  }
}

void AddSinusoids(DeviceContext&, const RopeTable& table, std::span<const int64_t> positions,
                  float scale, TensorView y) {
  const int n = table.n_pairs();
  float* to = y.as<float>();
  for (int64_t position : positions) {
    for (int i = 0; i < 2 * n; ++i, ++to) {
      const long double angle =
          position * std::pow(static_cast<long double>(table.spec().theta), -1.0L * (i % n) / n);
      *to = static_cast<float>(*to + scale * (i < n ? std::sin(angle) : std::cos(angle)));
    }
  }
}

void Embed(DeviceContext&, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  int64_t at = 0;
  for (int32_t id : ids) {
    for (int64_t i = 0; i < d; ++i, ++at) {
      const float x = FloatAt(table, id * d + i);
      if (y.dtype == DType::kF32) {
        y.as<float>()[at] = x;
      } else {
        y.as<BF16>()[at] = RoundToBF16(x);
      }
    }
  }
}

const ReferenceOf<cpu::PrepareHeads> kPrepareHeads = PrepareHeads;
const ReferenceOf<cpu::GrowQueries> kGrowQueries = GrowQueries;
const ReferenceOf<cpu::AddSinusoids> kAddSinusoids = AddSinusoids;
const ReferenceOf<cpu::Embed> kEmbed = Embed;

}  // namespace ovq::kernels::ref
