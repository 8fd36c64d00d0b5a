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
      section.FloatsOr("dt_limit", {config.min_dt, config.max_dt}, 0, kMaxDt);
  config.min_dt = static_cast<float>(limit[0]);
  config.max_dt = static_cast<float>(limit[1]);
  if (section.ok() && limit[0] > limit[1]) {
    section.Fail("dt_limit",
                 absl::StrCat("expected a range, got [", limit[0], ", ", limit[1], "]"));
  }
}

// Reads expand and checks that int(expand d_model) is the heads' width.
void ReadExpand(AttrReader& section, Mamba2Config& config, int64_t d_model) {
  section.Float("expand", config.expand, 0, 1e6);
  if (!section.ok() || config.expand == 0) return;
  const auto width = static_cast<int64_t>(config.expand * static_cast<double>(d_model));
  if (width != config.width()) {
    section.Fail("expand", absl::StrCat("times hidden_size = ", d_model, " is ", width,
                                        ", num_heads * head_dim is ", config.width()));
  }
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

void ReadConfig(const FieldReaders& from, Mamba2Config& config) {
  AttrReader& section = from.section;
  // Fields for training, or for how other implementations split the work.
  for (const char* field :
       {"chunk_size", "dt_min", "dt_max", "dt_init_floor", "A_init_range", "conv_init"}) {
    section.Has(field);
  }
  section.Int("num_heads", config.n_heads, 1, kMaxHeads);
  section.Int("head_dim", config.head_dim, 1, kMaxHeadDim);
  section.Int("state_size", config.state_size, 1, kMaxStateKeyDim);
  section.Int("n_groups", config.n_groups, 1, kMaxHeads);
  if (section.ok() && config.n_heads % config.n_groups != 0) {
    section.Fail("n_groups", absl::StrCat("expected a divisor of num_heads = ", config.n_heads,
                                          ", got ", config.n_groups));
  }
  ReadExpand(section, config, from.d_model);
  section.Int("conv_kernel", config.conv_size, 2, kMaxConvSize);
  section.Bool("use_conv_bias", config.conv_bias);
  section.Bool("use_bias", config.bias);
  section.Bool("rmsnorm", config.norm);
  section.Bool("norm_before_gate", config.norm_before_gate);
  if (config.norm_groups == 0) config.norm_groups = config.n_groups;
  section.Int("norm_groups", config.norm_groups, 1, kMaxHeads);
  if (section.ok() && config.width() % config.norm_groups != 0) {
    section.Fail("norm_groups", absl::StrCat("expected a divisor of num_heads * head_dim = ",
                                             config.width(), ", got ", config.norm_groups));
  }
  section.Bool("D_has_hdim", config.skip_per_channel);
  ReadDtLimit(section, config);
  from.model.Float("rms_norm_eps", config.norm_eps, 0, 1);
}

Mamba2::Mamba2(const Config& config) : config(config) {
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
