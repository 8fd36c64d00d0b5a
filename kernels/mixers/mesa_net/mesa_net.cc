#include "kernels/mixers/mesa_net/mesa_net.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/recurrent/gates.h"

namespace ovq {
namespace {

enum Field { kHkk, kHkv, kNewestInputs };

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxSteps = 1024;

StatePlace FieldPlace(const MixerState& state, const LayerState& where, Field field) {
  const StateField& of = state.fixed.list()[field];
  return {where.fixed_offset + state.fixed.offset(field),
          of.bytes() / static_cast<size_t>(of.shape[0]), 0};
}

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
  return spec.context.Upload(lambda.data(), lambda.size() * sizeof(float));
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

MesaNet::MesaNet(const Config& config) : config(config) {
  const Shape matrices = {config.n_heads, config.head_dim, config.stride()};
  layout.fixed = StateFields({{"key_keys", DType::kF32, matrices},
                              {"key_values", DType::kF32, matrices},
                              ShortConvField(2 * config.width(), config.conv_size)});
}

void MesaNet::Load(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  compute = spec.compute_dtype;
  const int64_t d_model = spec.state.d_model, width = config.width();
  std::vector<WeightPart> parts = {{"self_attn.q_proj.weight", width},
                                   {"self_attn.k_proj.weight", width},
                                   {"self_attn.v_proj.weight", width},
                                   {"self_attn.b_proj.weight", config.n_heads},
                                   {"self_attn.a_proj.weight", config.n_heads}};
  if (config.output_gate) parts.push_back({"self_attn.g_proj.weight", width});
  in = weights.Product(parts, d_model);
  beta_bias = weights.Floats("self_attn.b_proj.bias", {config.n_heads});
  gamma_bias = weights.Floats("self_attn.a_proj.bias", {config.n_heads});
  conv = LoadShortConv(spec, {{"self_attn.q_conv1d", width}, {"self_attn.k_conv1d", width}},
                       config.conv_size, config.conv_bias);
  lambda = LoadLambda(spec, config);
  norm_weight = weights.Floats("self_attn.o_norm.weight", {config.head_dim});
  out = weights.Product({{"self_attn.o_proj.weight", d_model}}, width, spec.residual_scale);
}

float* MesaNet::Read(const LayerArgs& args, TensorView projected, ScratchScope& scope) const {
  DeviceContext& context = args.context;
  const int64_t n_tokens = projected.shape[0], width = config.width();
  const int n_heads = config.n_heads;
  float *const beta = scope.Allocate<float>(n_tokens * n_heads),
               *const gamma = scope.Allocate<float>(n_tokens * n_heads),
               *const qk = scope.Allocate<float>(n_tokens * 2 * width),
               *const y = scope.Allocate<float>(n_tokens * width);
  SigmoidGate gate = {.x = projected.as<float>() + 3 * width,
                      .x_stride = in.out(),
                      .n_tokens = n_tokens,
                      .n_heads = n_heads,
                      .y = beta,
                      .bias = beta_bias.as<float>()};
  Sigmoid(context, gate);
  gate.x += n_heads;
  gate.y = gamma;
  gate.bias = gamma_bias.as<float>();
  Sigmoid(context, gate);
  Convolve(context, args.seqs,
           {.u = projected.as<float>(),
            .u_stride = in.out(),
            .width = 2 * width,
            .conv_size = conv.conv_size,
            .n_filters = 2 * width,
            .weight = conv.weight.as<float>(),
            .bias = conv.bias.as<float>(),
            .newest = args.where.fixed_offset + layout.fixed.offset(kNewestInputs),
            .y = qk});
  PrepareHeads(context, {.queries = {qk, n_tokens, 2 * n_heads, config.head_dim, 2 * width}});
  Dispatch<MesaNetRef, MesaNetCpu, MesaNetCuda>(
      context, MesaArgs{.config = config,
                        .seqs = args.seqs,
                        .h_kk = FieldPlace(layout, args.where, kHkk),
                        .h_kv = FieldPlace(layout, args.where, kHkv),
                        .q = qk,
                        .k = qk + width,
                        .v = projected.as<float>() + 2 * width,
                        .v_stride = in.out(),
                        .beta = beta,
                        .gamma = gamma,
                        .lambda = lambda.as<float>(),
                        .y = y});
  return y;
}

void MesaNet::Forward(const LayerArgs& args, TensorView x, TensorView y) const {
  ScratchScope scope(args.context);
  const int64_t n_tokens = args.seqs.n_tokens(), width = config.width();
  const TensorView projected = scope.Tensor(DType::kF32, {n_tokens, in.out()});
  in.Apply(args.context, x, projected);
  float* const read = Read(args, projected, scope);
  const TensorView normed = scope.Tensor(compute, {n_tokens, width});
  const float* gate = projected.as<float>() + 3 * width + 2 * config.n_heads;
  NormAndGate(args.context, {.x = read,
                             .n_tokens = n_tokens,
                             .n_groups = config.n_heads,
                             .width = config.head_dim,
                             .weight = norm_weight.as<float>(),
                             .eps = config.norm_eps,
                             .gate = config.output_gate ? GateKind::kSilu : GateKind::kNone,
                             .z = config.output_gate ? gate : nullptr,
                             .z_stride = in.out(),
                             .y = normed.data,
                             .y_dtype = compute});
  out.Apply(args.context, normed, y, args.adds);
}

}  // namespace ovq
