#include "tests/bench/cuda_product_bench.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/ops/ops.h"
#include "tests/bench/bench_util.h"

namespace ovq::bench {
namespace {

constexpr int kPassesOverWeights = 5;
constexpr int64_t kMostOutputs = int64_t{1} << 27;  // of one call

struct ProductShape {
  const char* name;
  int64_t in, out;
};

std::vector<kernels::BF16> RandomValues(int64_t n) {
  constexpr int64_t kTile = 65'537;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<kernels::BF16> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    values[i] = i < kTile ? kernels::RoundToBF16(normal(random)) : values[i - kTile];
  }
  return values;
}

// Median seconds of one product, of passes over all copies of its weights.
double TimeProduct(kernels::DeviceContext& context, std::span<const kernels::Linear> copies,
                   int64_t rows, const kernels::Buffer& x, const kernels::Buffer& y) {
  Meter meter(context);
  const kernels::TensorView in{x.as<void>(), kernels::DType::kBF16, {rows, copies[0].in()}};
  const kernels::TensorView out{y.as<void>(), kernels::DType::kF32, {rows, copies[0].out()}};
  std::vector<double> seconds;
  for (int pass = 0; pass <= kPassesOverWeights; ++pass) {
    meter.Start();
    for (const kernels::Linear& linear : copies) linear.Apply(context, in, out);
    const double took = meter.Stop() / static_cast<double>(copies.size());
    if (pass > 0) seconds.push_back(took);
  }
  return Median(seconds);
}

}  // namespace

void Products(kernels::DeviceContext& context, const ModelShape& shape, std::span<const int> rows,
              const Ceilings& ceilings, Report& report) {
  const int64_t d = shape.d_model, heads = int64_t{shape.n_heads} * 128;
  const ProductShape shapes[] = {{"qkv", d, 3 * heads},
                                 {"output", heads, d},
                                 {"gate_up", d, 2 * shape.d_ff},
                                 {"down", shape.d_ff, d},
                                 {"head", d, shape.vocab}};
  const size_t cached = 4 * std::max<size_t>(DescribeGpu().l2_bytes, 1);
  for (const auto& [name, in, out] : shapes) {
    std::vector<kernels::BF16> weights = RandomValues(in * out);
    const kernels::TensorView part{weights.data(), kernels::DType::kBF16, {out, in}};
    std::vector<kernels::Linear> copies;
    for (size_t bytes = 0; bytes < cached; bytes += copies.back().bytes()) {
      auto linear = kernels::Linear::Make({&part, 1}, kernels::DType::kBF16, context);
      Check(linear.ok(), "the benchmark's products are made");
      copies.push_back(*std::move(linear));
    }
    const int64_t most = *std::ranges::max_element(rows);
    const std::vector<kernels::BF16> values = RandomValues(most * in);
    const kernels::Buffer x = context.Upload(values.data(), values.size() * sizeof values[0]);
    const kernels::Buffer y(
        context.device(), static_cast<size_t>(std::min(most * out, kMostOutputs)) * sizeof(float));
    for (const int n : rows) {
      if (n * out > kMostOutputs) continue;  // no prompt asks for so many logits
      const double seconds = TimeProduct(context, copies, n, x, y);
      const double flops = 2.0 * n * static_cast<double>(in) * static_cast<double>(out);
      const double bytes = static_cast<double>(copies[0].bytes()) +
                           static_cast<double>(n * in) * sizeof(kernels::BF16) +
                           static_cast<double>(n * out) * sizeof(float);
      const double floor = std::max(OverCeiling(bytes, ceilings.read_bytes_per_s),
                                    OverCeiling(flops, ceilings.matmul_flops_per_s));
      report.Add({.name = std::string("product_") + name,
                  .sessions = n,
                  .seconds = seconds,
                  .measure = "times the floor of bytes or FLOPs",
                  .value = OverCeiling(seconds, floor),
                  .counted = "rows",
                  .more = {{"in", in},
                           {"out", out},
                           {"floor_seconds", floor},
                           {"flops_per_s", flops / seconds},
                           {"bytes_per_s", bytes / seconds}}});
    }
  }
}

}  // namespace ovq::bench
