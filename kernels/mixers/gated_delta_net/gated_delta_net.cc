#include "kernels/mixers/gated_delta_net/gated_delta_net.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/recurrent/matrix_state.h"

namespace ovq::kernels {
namespace {

enum Field { kMatrices };

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxValueDim = 4096;
constexpr int64_t kMaxRank = 1 << 16;

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
  section.Bool("use_gate", config.output_gate);
  constexpr std::string_view kActivations[] = {"silu", "sigmoid"};
  section.Choice("gate_activation", config.gate_activation, kActivations);
  section.Int("gate_rank", config.gate_rank, 0, kMaxRank);
  section.Bool("gate_bias", config.gate_bias);
  if (section.ok() && config.gate_bias && (config.gate_rank == 0 || !config.output_gate)) {
    section.Fail("gate_bias", "expected false: only a gate with a gate_rank has a bias");
  }
  section.Int("decay_rank", config.decay_rank, 0, kMaxRank);
  section.Float("decay_lower_bound", config.decay_lower_bound, -1e4, 0);
  if (section.ok() && config.decay_lower_bound < 0 && config.decay_rank == 0) {
    section.Fail("decay_lower_bound",
                 "expected 0: decays of heads, without a decay_rank, have none");
  }
  section.Bool("allow_neg_eigval", config.negative_eigenvalues);
  from.model.Float("rms_norm_eps", config.norm_eps, 0, 1);
}

RecurrentLayer GatedDeltaNet::Describe(const Config& config) {
  const int64_t qk = config.key_width(), v = config.value_width(), qkv = config.conv_width();
  const int64_t heads = config.n_v_heads;
  RecurrentLayer layer = {
      .n_heads = config.n_v_heads,
      .fields = {MatrixStateField(heads, config.head_dim, config.value_head_dim)},
      .in = {{"self_attn.q_proj.weight", qk},
             {"self_attn.k_proj.weight", qk},
             {"self_attn.v_proj.weight", v}},
      .out = {"self_attn.o_proj.weight", v},
      .conv = {.filters = {{"self_attn.q_conv1d", qk},
                           {"self_attn.k_conv1d", qk},
                           {"self_attn.v_conv1d", v}},
               .width = qkv,
               .size = config.conv_size,
               .has_bias = config.conv_bias},
      .unit_heads = {.n_heads = config.n_heads,
                     .head_dim = config.head_dim,
                     .query_scale =
                         static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)))},
      .norm = {.weight = "self_attn.o_norm.weight",
               .n_groups = config.n_v_heads,
               .eps = config.norm_eps}};
  layer.gates_in = {{"self_attn.b_proj.weight", heads}};
  if (config.decay_rank == 0) {
    layer.gates_in.push_back({"self_attn.a_proj.weight", heads});
    layer.decay = {.channel = heads};
  } else {
    layer.decay = {
        .projection = 0, .n_channels = config.head_dim, .lower_bound = config.decay_lower_bound};
    layer.low_rank.push_back({.down = {"self_attn.f_a_proj.weight", config.decay_rank},
                              .up = {"self_attn.f_b_proj.weight", heads * config.head_dim},
                              .is_of_gate = true});
  }
  layer.sigmoids = {{.channel = 0, .scale = config.negative_eigenvalues ? 2.0f : 1.0f}};
  if (!config.output_gate) return layer;
  layer.gate.kind = config.gate_activation == Config::GateActivation::kSilu ? GateKind::kSilu
                                                                            : GateKind::kSigmoid;
  if (config.gate_rank == 0) {
    layer.in.push_back({"self_attn.g_proj.weight", v});
    layer.gate.channel = qkv;
  } else {
    layer.gate.projection = static_cast<int>(layer.low_rank.size());
    layer.low_rank.push_back(
        {.down = {"self_attn.g_a_proj.weight", config.gate_rank},
         .up = {"self_attn.g_b_proj.weight", v},
         .bias = config.gate_bias ? "self_attn.g_b_proj.bias" : std::string_view()});
  }
  return layer;
}

void GatedDeltaNet::Advance(const LayerArgs& args, const RecurrentInputs& inputs) const {
  AdvanceStates(args.context, args.seqs,
                {.rule = StateRule::kDelta,
                 .n_heads = config_.n_v_heads,
                 .n_key_heads = config_.n_heads,
                 .key_dim = config_.head_dim,
                 .value_dim = config_.value_head_dim,
                 .q = inputs.convolved,
                 .k = inputs.convolved + config_.key_width(),
                 .v = inputs.convolved + 2 * config_.key_width(),
                 .stride = inputs.convolved_stride,
                 .decay = inputs.decay,
                 .beta = inputs.sigmoids[0],
                 .skip = nullptr,
                 .states = args.where.FixedPlace(state_, kMatrices),
                 .y = inputs.y,
                 .decays_keys = config_.decay_rank > 0});
}

}  // namespace ovq::kernels
