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

GatedDeltaNetConfig ReadConfig(AttrReader& model, AttrReader& section) {
  GatedDeltaNetConfig config{};
  config.n_heads = static_cast<int>(section.Int("num_heads", 1, kMaxHeads));
  config.n_v_heads = static_cast<int>(section.IntOr("num_v_heads", config.n_heads, 1, kMaxHeads));
  if (section.ok() && config.n_v_heads % config.n_heads != 0) {
    section.Fail("num_v_heads", absl::StrCat("expected a multiple of num_heads = ", config.n_heads,
                                             ", got ", config.n_v_heads));
  }
  config.head_dim = static_cast<int>(section.Int("head_dim", 1, kMaxStateKeyDim));
  config.value_head_dim = static_cast<int>(section.Int("value_head_dim", 1, kMaxValueDim));
  const bool convolves = section.BoolOr("use_short_conv", true);
  // Says nothing without a convolution, and is then in published files all the same.
  const int64_t taps = convolves ? section.Int("conv_size", 2, kMaxConvTaps)
                                 : section.IntOr("conv_size", 1, 1, kMaxConvTaps);
  config.conv_taps = convolves ? static_cast<int>(taps) : 1;
  config.conv_bias = section.BoolOr("conv_bias", false) && convolves;
  config.has_gate = section.BoolOr("use_gate", true);
  config.beta_scale = section.BoolOr("allow_neg_eigval", false) ? 2 : 1;
  config.norm_eps = static_cast<float>(model.FloatOr("rms_norm_eps", 1e-5, 0, 1));
  return config;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const StateSpec&, AttrReader& model, AttrReader& section)
    : config(ReadConfig(model, section)) {
  if (!model.ok() || !section.ok()) return;
  std::vector<StateField> fields = {
      MatrixStateField(config.n_v_heads, config.head_dim, config.value_head_dim)};
  if (config.conv_taps > 1) fields.push_back(ShortConvField(config.conv_width(), config.conv_taps));
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
  if (config.conv_taps > 1) {
    filters = TakeShortConv(
        spec, {{"self_attn.q_conv1d", qk}, {"self_attn.k_conv1d", qk}, {"self_attn.v_conv1d", v}},
        config.conv_taps, config.conv_bias);
  }
  decay_rate = TakeDecayRates(spec, "self_attn.A_log", config.n_v_heads);
  decay_bias = weights.Floats("self_attn.dt_bias", {config.n_v_heads});
  norm_weight = weights.Floats("self_attn.o_norm.weight", {config.value_head_dim});
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
  const std::vector<float> scales(static_cast<size_t>(config.n_heads), scale);
  query_scale = spec.context.Upload(scales.data(), scales.size() * sizeof(float));
}

GatedDeltaNet::Rows GatedDeltaNet::Project(const LayerStep& step, TensorView x,
                                           ScratchScope& scope) const {
  const int64_t n_rows = step.seqs.n_rows(), width = config.conv_width();
  const TensorView projected = scope.Tensor(DType::kF32, {n_rows, in.out()});
  in.Apply(step.context, x, projected);
  auto* const q = scope.Allocate<float>(n_rows * width);
  float* const a = projected.as<float>() + width;
  const Rows rows = {.q = q,
                     .k = q + config.qk_width(),
                     .v = q + 2 * config.qk_width(),
                     .a = a,
                     .b = a + config.n_v_heads,
                     .g = a + 2 * config.n_v_heads,
                     .n_rows = n_rows};
  Convolve(step.context, step.seqs,
           {.u = projected.as<float>(),
            .u_stride = in.out(),
            .width = width,
            .taps = config.conv_taps,
            .n_filters = width,
            .weight = filters.weight.as<float>(),
            .bias = filters.bias.as<float>(),
            .newest = step.where.fixed_offset +
                      (config.conv_taps > 1 ? layout.fixed.offset(kNewestInputs) : 0),
            .y = q});
  PrepareHeads(step.context, {.queries = {rows.q, n_rows, config.n_heads, config.head_dim, width},
                              .keys = {rows.k, n_rows, config.n_heads, config.head_dim, width},
                              .norm = HeadNorm::kUnit,
                              .beta = query_scale.as<float>()});
  return rows;
}

float* GatedDeltaNet::ReadStates(const LayerStep& step, const Rows& rows,
                                 ScratchScope& scope) const {
  auto* const alpha = scope.Allocate<float>(rows.n_rows * config.n_v_heads);
  auto* const beta = scope.Allocate<float>(rows.n_rows * config.n_v_heads);
  auto* const y = scope.Allocate<float>(rows.n_rows * config.v_width());
  Decay(step.context, {.x = rows.a,
                       .x_stride = in.out(),
                       .n_rows = rows.n_rows,
                       .n_heads = config.n_v_heads,
                       .bias = decay_bias.as<float>(),
                       .rate = decay_rate.as<float>(),
                       .decay = alpha});
  Sigmoid(step.context, {.x = rows.b,
                         .x_stride = in.out(),
                         .n_rows = rows.n_rows,
                         .n_heads = config.n_v_heads,
                         .y = beta,
                         .scale = config.beta_scale});
  AdvanceStates(step.context, step.seqs,
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
                 .write = beta,
                 .skip = nullptr,
                 .states = step.where.fixed_offset + layout.fixed.offset(kMatrices),
                 .y = y});
  return y;
}

void GatedDeltaNet::Forward(const LayerStep& step, TensorView x, TensorView y) const {
  ScratchScope scope(step.context);
  const Rows rows = Project(step, x, scope);
  float* const answers = ReadStates(step, rows, scope);
  const TensorView normed = scope.Tensor(compute, {rows.n_rows, config.v_width()});
  NormAndGate(step.context, {.x = answers,
                             .n_rows = rows.n_rows,
                             .n_groups = config.n_v_heads,
                             .width = config.value_head_dim,
                             .weight = norm_weight.as<float>(),
                             .eps = config.norm_eps,
                             .gate = config.has_gate ? GateKind::kSilu : GateKind::kNone,
                             .z = config.has_gate ? rows.g : nullptr,
                             .z_stride = in.out(),
                             .y = normed.data,
                             .y_dtype = compute});
  out.Apply(step.context, normed, y, step.adds);
}

}  // namespace ovq
