#include "kernels/mixers/mesa_net/mesa_net.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/dispatch.h"

namespace ovq::kernels {
namespace {

enum Field { kHkk, kHkv };

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxSteps = 1024;

// lambda = softplus(lambda_params) + lambda_lower_bound, [n_heads, stride], padded with zeros.
Buffer LoadLambda(const MixerSpec& spec, const MesaConfig& config) {
  const std::vector<float> params =
      spec.weights.HostFloats("self_attn.lambda_params", {config.width()});
  if (params.empty()) return {};
  std::vector<float> lambda(static_cast<size_t>(config.n_heads * config.stride()));
  for (int64_t i = 0; i < config.width(); ++i) {
    const double z = params[i];
    const double softplus = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
    const int64_t at = i / config.head_dim * config.stride() + i % config.head_dim;
    lambda[at] = static_cast<float>(softplus + config.lambda_lower_bound);
  }
  return spec.context.Upload(lambda);
}

}  // namespace

void ReadConfig(const FieldReaders& from, MesaConfig& config) {
  AttrReader& section = from.section;
  section.Int("num_heads", config.n_heads, 1, kMaxHeads);
  section.Int("head_dim", config.head_dim, 1, kMaxMesaHeadDim);
  section.Int("conv_size", config.conv_size, 2, kMaxConvSize);
  section.Bool("conv_bias", config.conv_bias);
  section.Bool("use_output_gate", config.output_gate);
  section.Float("lambda_lower_bound", config.lambda_lower_bound, 0, 1e6);
  section.Int("max_cg_step_training", config.cg_steps, 1, kMaxSteps);
  // Published files have both fields; the layer that models are trained in reads neither.
  section.Has("max_cg_step_decoding");
  section.Has("use_short_conv");
  from.model.Float("rms_norm_eps", config.norm_eps, 0, 1);
}

RecurrentLayer MesaNet::Describe(const Config& config) {
  const int64_t width = config.width(), heads = config.n_heads;
  const Shape matrices = {heads, config.head_dim, config.stride()};
  RecurrentLayer layer = {
      .n_heads = config.n_heads,
      .fields = {{"key_keys", DType::kF32, matrices}, {"key_values", DType::kF32, matrices}},
      .in = {{"self_attn.q_proj.weight", width},
             {"self_attn.k_proj.weight", width},
             {"self_attn.v_proj.weight", width}},
      .gates_in = {{"self_attn.b_proj.weight", heads}, {"self_attn.a_proj.weight", heads}},
      .out = {"self_attn.o_proj.weight", width},
      .conv = {.filters = {{"self_attn.q_conv1d", width}, {"self_attn.k_conv1d", width}},
               .width = 2 * width,
               .size = config.conv_size,
               .has_bias = config.conv_bias},
      .unit_heads = {.n_heads = config.n_heads, .head_dim = config.head_dim},
      .sigmoids = {{.channel = 0, .bias = "self_attn.b_proj.bias"},
                   {.channel = heads, .bias = "self_attn.a_proj.bias"}},
      .norm = {
          .weight = "self_attn.o_norm.weight", .n_groups = config.n_heads, .eps = config.norm_eps}};
  if (config.output_gate) {
    layer.in.push_back({"self_attn.g_proj.weight", width});
    layer.gate = {.kind = GateKind::kSilu, .channel = 3 * width};
  }
  return layer;
}

void MesaNet::LoadOwn(const MixerSpec& spec) { lambda_ = LoadLambda(spec, config_); }

void MesaNet::Advance(const LayerArgs& args, const RecurrentInputs& inputs) const {
  Dispatch<MesaNetCpu, MesaNetCuda>(args.context, args.seqs,
                                    MesaArgs{.config = config_,
                                             .h_kk = args.where.FixedPlace(state_, kHkk),
                                             .h_kv = args.where.FixedPlace(state_, kHkv),
                                             .q = inputs.convolved,
                                             .k = inputs.convolved + config_.width(),
                                             .v = inputs.projected + 2 * config_.width(),
                                             .qk_stride = inputs.convolved_stride,
                                             .v_stride = inputs.projected_stride,
                                             .beta = inputs.sigmoids[0],
                                             .gamma = inputs.sigmoids[1],
                                             .lambda = lambda_.as<float>(),
                                             .y = inputs.y});
}

}  // namespace ovq::kernels
