#include "kernels/mixers/gated_delta_net/gated_delta_net.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/mixers/recurrent/matrix_state.h"

namespace ovq {
namespace {

enum Field { kMatrices, kNewestInputs };

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxValueDim = 4096;

}  // namespace

void ReadConfig(const FieldReaders& from, GatedDeltaNetConfig& config) {
  AttrReader& section = from.section;
  section.Int("num_heads", config.n_heads, 1, kMaxHeads);
  if (config.n_v_heads == 0) config.n_v_heads = config.n_heads;
  section.Int("num_v_heads", config.n_v_heads, 1, kMaxHeads);
  if (section.ok() && config.n_v_heads % config.n_heads != 0) {
    section.Fail("num_v_heads", absl::StrCat("expected a multiple of num_heads = ", config.n_heads,
                                             ", got ", config.n_v_heads));
  }
  section.Int("head_dim", config.head_dim, 1, kMaxStateKeyDim);
  section.Int("value_head_dim", config.value_head_dim, 1, kMaxValueDim);
  section.Bool("use_short_conv", config.convolves);
  section.Bool("conv_bias", config.conv_bias);
  if (config.convolves) {
    section.Int("conv_size", config.conv_size, 2, kMaxConvSize);
  } else {  // published files have conv_size and a bias all the same; they then mean nothing
    section.IntOr("conv_size", 1, 1, kMaxConvSize);
    config.conv_size = 1;
    config.conv_bias = false;
  }
  section.Bool("use_gate", config.has_gate);
  section.Bool("allow_neg_eigval", config.negative_eigenvalues);
  from.model.Float("rms_norm_eps", config.norm_eps, 0, 1);
}

GatedDeltaNet::GatedDeltaNet(const Config& config) : config(config) {
  std::vector<StateField> fields = {
      MatrixStateField(config.n_v_heads, config.head_dim, config.value_head_dim)};
  if (config.conv_size > 1) fields.push_back(ShortConvField(config.conv_width(), config.conv_size));
  layout.fixed = StateFields(std::move(fields));
}

void GatedDeltaNet::Load(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  compute = spec.compute_dtype;
  const int64_t qk = config.qk_width(), v = config.v_width(), d_model = spec.state.d_model;
  std::vector<WeightPart> rows = {{"self_attn.q_proj.weight", qk},
                                  {"self_attn.k_proj.weight", qk},
                                  {"self_attn.v_proj.weight", v},
                                  {"self_attn.a_proj.weight", config.n_v_heads},
                                  {"self_attn.b_proj.weight", config.n_v_heads}};
  if (config.has_gate) rows.push_back({"self_attn.g_proj.weight", v});
  in = weights.Product(rows, d_model);
  out = weights.Product({{"self_attn.o_proj.weight", d_model}}, v, spec.residual_scale);
  if (config.conv_size > 1) {
    conv = LoadShortConv(
        spec, {{"self_attn.q_conv1d", qk}, {"self_attn.k_conv1d", qk}, {"self_attn.v_conv1d", v}},
        config.conv_size, config.conv_bias);
  }
  rate = LoadDecayRates(spec, "self_attn.A_log", config.n_v_heads);
  dt_bias = weights.Floats("self_attn.dt_bias", {config.n_v_heads});
  norm_weight = weights.Floats("self_attn.o_norm.weight", {config.value_head_dim});
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
  const std::vector<float> scales(static_cast<size_t>(config.n_heads), scale);
  query_scale = spec.context.Upload(scales.data(), scales.size() * sizeof(float));
}

GatedDeltaNet::TokenInputs GatedDeltaNet::Project(const LayerArgs& args, TensorView x,
                                                  ScratchScope& scope) const {
  const int64_t n_tokens = args.seqs.n_tokens(), width = config.conv_width();
  const TensorView projected = scope.Tensor(DType::kF32, {n_tokens, in.out()});
  in.Apply(args.context, x, projected);
  auto* const q = scope.Allocate<float>(n_tokens * width);
  float* const a = projected.as<float>() + width;
  const TokenInputs rows = {.q = q,
                            .k = q + config.qk_width(),
                            .v = q + 2 * config.qk_width(),
                            .a = a,
                            .b = a + config.n_v_heads,
                            .g = a + 2 * config.n_v_heads,
                            .n_tokens = n_tokens};
  Convolve(args.context, args.seqs,
           {.u = projected.as<float>(),
            .u_stride = in.out(),
            .width = width,
            .conv_size = config.conv_size,
            .n_filters = width,
            .weight = conv.weight.as<float>(),
            .bias = conv.bias.as<float>(),
            .newest = args.where.fixed_offset +
                      (config.conv_size > 1 ? layout.fixed.offset(kNewestInputs) : 0),
            .y = q});
  PrepareHeads(args.context, {.queries = {rows.q, n_tokens, config.n_heads, config.head_dim, width},
                              .keys = {rows.k, n_tokens, config.n_heads, config.head_dim, width},
                              .norm = HeadNorm::kUnit,
                              .beta = query_scale.as<float>()});
  return rows;
}

float* GatedDeltaNet::ReadStates(const LayerArgs& args, const TokenInputs& rows,
                                 ScratchScope& scope) const {
  auto* const alpha = scope.Allocate<float>(rows.n_tokens * config.n_v_heads);
  auto* const beta = scope.Allocate<float>(rows.n_tokens * config.n_v_heads);
  auto* const y = scope.Allocate<float>(rows.n_tokens * config.v_width());
  Decay(args.context, {.x = rows.a,
                       .x_stride = in.out(),
                       .n_tokens = rows.n_tokens,
                       .n_heads = config.n_v_heads,
                       .bias = dt_bias.as<float>(),
                       .rate = rate.as<float>(),
                       .decay = alpha});
  Sigmoid(args.context, {.x = rows.b,
                         .x_stride = in.out(),
                         .n_tokens = rows.n_tokens,
                         .n_heads = config.n_v_heads,
                         .y = beta,
                         .scale = config.negative_eigenvalues ? 2.0f : 1.0f});
  AdvanceStates(args.context, args.seqs,
                {.rule = StateRule::kDelta,
                 .n_heads = config.n_v_heads,
                 .n_key_heads = config.n_heads,
                 .key_dim = config.head_dim,
                 .value_dim = config.value_head_dim,
                 .q = rows.q,
                 .k = rows.k,
                 .v = rows.v,
                 .stride = config.conv_width(),
                 .decay = alpha,
                 .beta = beta,
                 .skip = nullptr,
                 .states = args.where.fixed_offset + layout.fixed.offset(kMatrices),
                 .y = y});
  return y;
}

void GatedDeltaNet::Forward(const LayerArgs& args, TensorView x, TensorView y) const {
  ScratchScope scope(args.context);
  const TokenInputs rows = Project(args, x, scope);
  float* const answers = ReadStates(args, rows, scope);
  const TensorView normed = scope.Tensor(compute, {rows.n_tokens, config.v_width()});
  NormAndGate(args.context, {.x = answers,
                             .n_tokens = rows.n_tokens,
                             .n_groups = config.n_v_heads,
                             .width = config.value_head_dim,
                             .weight = norm_weight.as<float>(),
                             .eps = config.norm_eps,
                             .gate = config.has_gate ? GateKind::kSilu : GateKind::kNone,
                             .z = config.has_gate ? rows.g : nullptr,
                             .z_stride = in.out(),
                             .y = normed.data,
                             .y_dtype = compute});
  out.Apply(args.context, normed, y, args.adds);
}

}  // namespace ovq
