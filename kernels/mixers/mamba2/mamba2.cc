#include "kernels/mixers/mamba2/mamba2.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/recurrent/matrix_state.h"

namespace ovq::kernels {
namespace {

enum Field { kMatrices };

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
  return spec.context.Upload(all);
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

// W_in's channels: z, x, B, C, dt.
RecurrentLayer Mamba2::Describe(const Config& config) {
  const int64_t width = config.width(), xbc = config.conv_width();
  const int64_t rows = width + xbc + config.n_heads;
  RecurrentLayer layer = {
      .n_heads = config.n_heads,
      .fields = {MatrixStateField(config.n_heads, config.state_size, config.head_dim)},
      .in = {{"self_attn.in_proj.weight", width + xbc, 0, rows}},
      .gates_in = {{"self_attn.in_proj.weight", config.n_heads, width + xbc, rows}},
      .out = {"self_attn.out_proj.weight", width},
      .conv = {.filters = {{"self_attn.conv1d", xbc}},
               .first = width,
               .width = xbc,
               .size = config.conv_size,
               .has_bias = config.conv_bias},
      .decay =
          RecurrentLayer::DecayInput{
              .channel = 0, .min_dt = config.min_dt, .max_dt = config.max_dt},
      .norm = {.weight = config.norm ? "self_attn.norm.weight" : "",
               .n_groups = config.norm_groups,
               .shares_weight = false,
               .eps = config.norm_eps},
      .gate = {.kind = GateKind::kSilu, .channel = 0, .before_norm = !config.norm_before_gate}};
  if (config.bias) {
    layer.in_bias = "self_attn.in_proj.bias";
    layer.out_bias = "self_attn.out_proj.bias";
  }
  return layer;
}

void Mamba2::LoadOwn(const MixerSpec& spec) { skip_ = LoadSkip(spec, config_); }

void Mamba2::Advance(const LayerArgs& args, const RecurrentInputs& inputs) const {
  const float* const b = inputs.convolved + config_.width();
  AdvanceStates(args.context, args.seqs,
                {.rule = StateRule::kAdd,
                 .n_heads = config_.n_heads,
                 .n_key_heads = config_.n_groups,
                 .key_dim = config_.state_size,
                 .value_dim = config_.head_dim,
                 .q = b + config_.group_width(),
                 .k = b,
                 .v = inputs.convolved,
                 .stride = inputs.convolved_stride,
                 .decay = inputs.decay,
                 .beta = inputs.dt,
                 .skip = skip_.as<float>(),
                 .states = args.where.FixedPlace(state_, kMatrices),
                 .y = inputs.y});
}

}  // namespace ovq::kernels
