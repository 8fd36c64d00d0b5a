#include "kernels/mixers/mamba2/mamba2.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/mixers/recurrent/matrix_state.h"

namespace ovq {
namespace {

enum Field { kMatrices, kNewestInputs };

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr double kMaxDt = 1e9;

void ReadDtLimit(AttrReader& section, Mamba2Config& config) {
  const std::vector<double> limit =
      section.FloatsOr("dt_limit", {0, std::numeric_limits<double>::infinity()}, 0, kMaxDt);
  config.min_dt = static_cast<float>(limit[0]);
  config.max_dt = static_cast<float>(limit[1]);
  if (section.ok() && limit[0] > limit[1]) {
    section.Fail("dt_limit",
                 absl::StrCat("expected a range, got [", limit[0], ", ", limit[1], "]"));
  }
}

// Checks that int(expand d_model) is the heads' width.
void CheckExpand(AttrReader& section, const Mamba2Config& config, int64_t d_model) {
  const double expand = section.FloatOr("expand", 0, 0, 1e6);
  if (!section.ok() || expand == 0) return;
  const auto width = static_cast<int64_t>(expand * static_cast<double>(d_model));
  if (width != config.width()) {
    section.Fail("expand", absl::StrCat("times hidden_size = ", d_model, " is ", width,
                                        ", num_heads * head_dim is ", config.width()));
  }
}

Mamba2Config ReadConfig(const StateSpec& spec, AttrReader& model, AttrReader& section) {
  // Fields for training, or for how other implementations split the work.
  for (const char* field :
       {"chunk_size", "dt_min", "dt_max", "dt_init_floor", "A_init_range", "conv_init"}) {
    spec.section.Ignore(field);
  }
  Mamba2Config config{};
  config.n_heads = static_cast<int>(section.Int("num_heads", 1, kMaxHeads));
  config.head_dim = static_cast<int>(section.IntOr("head_dim", 64, 1, kMaxHeadDim));
  config.state_size = static_cast<int>(section.IntOr("state_size", 128, 1, kMaxStateKeyDim));
  config.n_groups = static_cast<int>(section.IntOr("n_groups", 1, 1, kMaxHeads));
  if (section.ok() && config.n_heads % config.n_groups != 0) {
    section.Fail("n_groups", absl::StrCat("expected a divisor of num_heads = ", config.n_heads,
                                          ", got ", config.n_groups));
  }
  CheckExpand(section, config, spec.d_model);
  config.conv_size = static_cast<int>(section.IntOr("conv_kernel", 4, 2, kMaxConvSize));
  config.conv_bias = section.BoolOr("use_conv_bias", true);
  config.bias = section.BoolOr("use_bias", false);
  config.norm = section.BoolOr("rmsnorm", true);
  config.norm_before_gate = section.BoolOr("norm_before_gate", false);
  config.norm_groups =
      static_cast<int>(section.IntOr("norm_groups", config.n_groups, 1, kMaxHeads));
  if (section.ok() && config.width() % config.norm_groups != 0) {
    section.Fail("norm_groups", absl::StrCat("expected a divisor of num_heads * head_dim = ",
                                             config.width(), ", got ", config.norm_groups));
  }
  config.skip_per_channel = section.BoolOr("D_has_hdim", false);
  ReadDtLimit(section, config);
  config.norm_eps = static_cast<float>(model.FloatOr("rms_norm_eps", 1e-5, 0, 1));
  return config;
}

// D [n_heads, head_dim], one number a channel.
Buffer LoadSkip(const MixerSpec& spec, const Mamba2Config& config) {
  if (config.skip_per_channel) return spec.weights.Floats("self_attn.D", {config.width()});
  const std::vector<float> head_skips = spec.weights.HostFloats("self_attn.D", {config.n_heads});
  std::vector<float> all;
  for (float skip : head_skips) all.insert(all.end(), static_cast<size_t>(config.head_dim), skip);
  if (all.empty()) return {};
  return spec.context.Upload(all.data(), all.size() * sizeof(float));
}

TensorView VectorView(const Buffer& buffer) {
  return {buffer.as<void>(), DType::kF32, {static_cast<int64_t>(buffer.bytes() / sizeof(float))}};
}

}  // namespace

Mamba2::Mamba2(const StateSpec& spec, AttrReader& model, AttrReader& section)
    : config(ReadConfig(spec, model, section)) {
  if (!model.ok() || !section.ok()) return;
  layout.fixed = StateFields({MatrixStateField(config.n_heads, config.state_size, config.head_dim),
                              ShortConvField(config.conv_width(), config.conv_size)});
}

void Mamba2::Load(const MixerSpec& spec) {
  WeightReader& weights = spec.weights;
  compute = spec.compute_dtype;
  const int64_t rows = config.width() + config.conv_width() + config.n_heads;
  const int64_t d_model = spec.state.d_model;
  in = weights.Product({{"self_attn.in_proj.weight", rows}}, d_model);
  out = weights.Product({{"self_attn.out_proj.weight", d_model}}, config.width(),
                        spec.residual_scale);
  if (config.bias) {
    in_bias = weights.Floats("self_attn.in_proj.bias", {rows});
    out_bias = weights.Floats({{"self_attn.out_proj.bias", d_model}}, spec.residual_scale);
  }
  conv = LoadShortConv(spec, {{"self_attn.conv1d", config.conv_width()}}, config.conv_size,
                       config.conv_bias);
  rate = LoadDecayRates(spec, "self_attn.A_log", config.n_heads);
  dt_bias = weights.Floats("self_attn.dt_bias", {config.n_heads});
  skip = LoadSkip(spec, config);
  if (config.norm) norm_weight = weights.Floats("self_attn.norm.weight", {config.width()});
}

float* Mamba2::ReadStates(const LayerArgs& args, TensorView projected, ScratchScope& scope) const {
  const int64_t n_tokens = projected.shape[0], stride = in.out(), width = config.width();
  const int64_t conv_width = config.conv_width(), first = args.where.fixed_offset;
  auto* const x = scope.Allocate<float>(n_tokens * conv_width);
  auto* const decay = scope.Allocate<float>(n_tokens * config.n_heads);
  auto* const dt = scope.Allocate<float>(n_tokens * config.n_heads);
  auto* const y = scope.Allocate<float>(n_tokens * width);
  Convolve(args.context, args.seqs,
           {.u = projected.as<float>() + width,
            .u_stride = stride,
            .width = conv_width,
            .conv_size = config.conv_size,
            .n_filters = conv_width,
            .weight = conv.weight.as<float>(),
            .bias = conv.bias.as<float>(),
            .newest = first + layout.fixed.offset(kNewestInputs),
            .y = x});
  Decay(args.context, {.x = projected.as<float>() + width + conv_width,
                       .x_stride = stride,
                       .n_tokens = n_tokens,
                       .n_heads = config.n_heads,
                       .bias = dt_bias.as<float>(),
                       .rate = rate.as<float>(),
                       .decay = decay,
                       .dt = dt,
                       .min_dt = config.min_dt,
                       .max_dt = config.max_dt});
  AdvanceStates(args.context, args.seqs,
                {.rule = StateRule::kAdd,
                 .n_heads = config.n_heads,
                 .n_key_heads = config.n_groups,
                 .key_dim = config.state_size,
                 .value_dim = config.head_dim,
                 .q = x + width + config.group_width(),
                 .k = x + width,
                 .v = x,
                 .stride = conv_width,
                 .decay = decay,
                 .beta = dt,
                 .skip = skip.as<float>(),
                 .states = first + layout.fixed.offset(kMatrices),
                 .y = y});
  return y;
}

void Mamba2::Forward(const LayerArgs& args, TensorView x, TensorView y) const {
  ScratchScope scope(args.context);
  const int64_t n_tokens = args.seqs.n_tokens();
  const TensorView projected = scope.Tensor(DType::kF32, {n_tokens, in.out()});
  in.Apply(args.context, x, projected);
  if (config.bias) AddBias(args.context, projected, VectorView(in_bias), 1);
  float* const answers = ReadStates(args, projected, scope);
  const TensorView gated = scope.Tensor(compute, {n_tokens, config.width()});
  NormAndGate(args.context, {.x = answers,
                             .n_tokens = n_tokens,
                             .n_groups = config.norm_groups,
                             .width = config.width() / config.norm_groups,
                             .weight = norm_weight.as<float>(),
                             .shares_weight = false,
                             .eps = config.norm_eps,
                             .gate = GateKind::kSilu,
                             .z = projected.as<float>(),
                             .z_stride = in.out(),
                             .gates_input = !config.norm_before_gate,
                             .y = gated.data,
                             .y_dtype = compute});
  out.Apply(args.context, gated, y, args.adds);
  if (config.bias) AddBias(args.context, y, VectorView(out_bias), 1);
}

}  // namespace ovq
