#include "tests/bench/cuda_ovq_bench.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/mixers/ovq/ovq.h"
#include "tests/bench/bench_util.h"

namespace ovq::bench {
namespace {

constexpr int kHeadDim = 128;
constexpr float kBeta = 8;
constexpr int kPasses = 3;
constexpr double kRateTarget = 0.35;

// Random q, k, v of every head in the layout of Attention's projections: q and k are unit vectors
// (q times beta) of bfloat16 values.
std::vector<float> RandomRows(int64_t n_rows, int n_heads) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(n_rows) * 3 * n_heads * kHeadDim);
  for (float& value : rows) value = normal(random);
  const int unit_heads = 2 * n_heads;
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int head = 0; head < unit_heads; ++head) {
      float* x = rows.data() + (row * 3 * n_heads + head) * kHeadDim;
      float squares = 0;
      for (int i = 0; i < kHeadDim; ++i) squares += x[i] * x[i];
      const float scale = (head < n_heads ? kBeta : 1.0f) / std::sqrt(squares);
      for (int i = 0; i < kHeadDim; ++i)
        x[i] = kernels::ToFloat(kernels::RoundToBF16(x[i] * scale));
    }
  }
  return rows;
}

double FlopsOfOneHead(const Scale& scale) {
  const double pair = 2 * kHeadDim;  // FLOPs of the dot product of two head vectors
  double flops = 0;
  for (int64_t begin = 0; begin < scale.prefill_tokens; begin += scale.chunk_len) {
    const auto live = static_cast<double>(kernels::CentroidsAt(begin, scale.slot_cap));
    const auto length =
        static_cast<double>(std::min(scale.chunk_len, scale.prefill_tokens - begin));
    flops += length * 3 * pair * live + 2 * pair * length * (length + 1) / 2;
  }
  return flops;
}

kernels::LayerConfig<kernels::OvqConfig> MakeConfig(const Scale& scale, int n_heads) {
  kernels::LayerConfig<kernels::OvqConfig> layer;
  kernels::OvqConfig& config = layer.fields;
  config.shape = {
      .n_heads = n_heads, .n_kv_heads = n_heads, .head_dim = kHeadDim, .value_head_dim = kHeadDim};
  config.chunk_len = static_cast<int>(scale.chunk_len);
  config.default_slot_cap = scale.slot_cap;
  return layer;
}

class OvqLayer {
 public:
  OvqLayer(kernels::DeviceContext& context, const Scale& scale, int n_heads)
      : context_(context),
        scale_(scale),
        config_(MakeConfig(scale, n_heads)),
        ovq_({.config = config_,
              .d_model = 0,
              .kv_dtype = scale.state_dtype,
              .device = kernels::Device::kCuda},
             config_.fields),
        meter_(context) {
    const kernels::MixerState& layout = ovq_.state();
    where_ = {0, layout.fixed.bytes(), layout.block.bytes(), layout.head_bytes(), 0};
    const int64_t blocks = (scale.slot_cap + kernels::kBlockSlots - 1) / kernels::kBlockSlots;
    session_bytes_ = layout.fixed.bytes() + static_cast<size_t>(blocks) * layout.block.bytes();
    const int64_t n_rows = scale.prefill_sessions * scale.prefill_chunk_tokens;
    const std::vector<float> rows = RandomRows(n_rows, n_heads);
    rows_ = context.Upload(rows.data(), rows.size() * sizeof(float));
    out_ = kernels::Buffer(context.device(), rows.size() / 3 * sizeof(kernels::BF16));
  }

  // Seconds of the attention while all sessions prefill their prompts.
  double Pass() {
    const std::vector<std::byte> zeros(session_bytes_);
    std::vector<kernels::Buffer> memory;
    std::vector<std::byte*> bases;
    for (int i = 0; i < scale_.prefill_sessions; ++i) {
      memory.push_back(context_.Upload(zeros.data(), zeros.size()));
      bases.push_back(memory.back().as<std::byte>());
    }
    double seconds = 0;
    for (int64_t at = 0; at < scale_.prefill_tokens; at += scale_.prefill_chunk_tokens) {
      seconds += Step(bases, at);
    }
    return seconds;
  }

 private:
  double Step(const std::vector<std::byte*>& bases, int64_t position) {
    std::vector<int32_t> token_begin{0};
    for (size_t i = 0; i < bases.size(); ++i) {
      token_begin.push_back(token_begin.back() + static_cast<int32_t>(scale_.prefill_chunk_tokens));
    }
    const std::vector<int64_t> start(bases.size(), position);
    const std::vector<int32_t> caps(bases.size(), scale_.slot_cap);
    const kernels::StagedBatch staged = kernels::StageBatch(
        context_,
        {.token_begin = token_begin, .start_pos = start, .slot_cap = caps, .state = bases},
        {&ovq_.state().growth, 1});
    const int64_t width = int64_t{ovq_.shape.n_heads} * kHeadDim;
    const float* q = rows_.as<float>();
    const kernels::AttentionTensors tokens = {.q = q,
                                              .k = q + width,
                                              .v = q + 2 * width,
                                              .stride = 3 * width,
                                              .out = out_.as<void>(),
                                              .out_dtype = kernels::DType::kBF16};
    kernels::AttentionBlocks blocks = ovq_.Blocks(where_);
    blocks.compute_dtype = tokens.out_dtype;
    blocks.layer = 1;
    blocks.live = staged.live[0];
    meter_.Start();
    kernels::AttendCuda(context_, {blocks, staged.seqs, tokens});
    return meter_.Stop();
  }

  kernels::DeviceContext& context_;
  const Scale& scale_;
  kernels::LayerConfig<kernels::OvqConfig> config_;
  kernels::OvqAttention ovq_;
  kernels::LayerState where_;
  size_t session_bytes_ = 0;
  kernels::Buffer rows_;  // [n_rows][3 d_model] float32
  kernels::Buffer out_;   // [n_rows][d_model] bfloat16
  Meter meter_;
};

}  // namespace

void OvqPrefill(kernels::DeviceContext& context, const Scale& scale, int n_heads,
                const Ceilings& ceilings, Report& report) {
  OvqLayer layer(context, scale, n_heads);
  layer.Pass();
  std::vector<double> passes;
  for (int i = 0; i < kPasses; ++i) passes.push_back(layer.Pass());
  const double seconds = Median(passes);
  const double flops = FlopsOfOneHead(scale) * n_heads * scale.prefill_sessions;
  report.Add({.name = "ovq_prefill",
              .sessions = scale.prefill_sessions,
              .seconds = seconds,
              .measure = "of the matmul rate, one layer's attention",
              .value = OverCeiling(flops / seconds, ceilings.matmul_flops_per_s),
              .goal = GoalIf(ceilings.matmul_flops_per_s, Goal::kAtLeast),
              .target = kRateTarget,
              .more = {{"flops", flops}, {"flops_per_s", flops / seconds}}});
}

}  // namespace ovq::bench
