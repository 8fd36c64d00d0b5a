// Family rwkv7backbone, the KVM paper's code (featherless-ai/KVM-paper): a decoder of LayerNorms,
// token shifts and squared ReLUs around one mixer, or a main and an alternate one in turn. Defaults
// are those of that code.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/kvm/kvm.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/family.h"

namespace ovq::model {
namespace {

constexpr double kMaxNumber = 1e15;

// Class paths of a mixer's other kernels.
struct MixerPath {
  std::string_view path, name;
};
constexpr MixerPath kPaths[] = {
    {"model.kvm_triton_mixer.SequenceMixer", "kvm"},
    {"model.kvm_fp32_routing_reference.SequenceMixer", "kvm"},
};

// The layer type of a mixer by its name in the file; empty: none.
std::string LayerType(std::string_view in_file) {
  if (in_file == "swa") return "sliding_attention";
  if (in_file == "gptalpha") return "full_attention";
  if (in_file == "gptalpha_bswa") return "block_sliding_attention";
  return in_file == "ovq" || in_file == "kvm" ? absl::StrCat(AbslView(in_file), "_attention") : "";
}

// 1.3 sqrt(width) rounded to a multiple of 32, half to even as in Python, at least 32.
int64_t GateRank(int64_t width) {
  const double steps = std::nearbyint(1.3 * std::sqrt(static_cast<double>(width)) / 32);
  return std::max<int64_t>(32, 32 * static_cast<int64_t>(steps));
}

// Reads the file's fields and fills in the configs of its mixers.
class Reader {
 public:
  Reader(const kernels::Attrs& fields, ModelConfig& config)
      : fields_(fields), file_(fields), config_(config) {}

  absl::Status Read() {
    ReadSizes();
    if (!file_.ok()) return file_.status();
    config_.norm = {.kind = NormKind::kLayer, .eps = 1e-5f, .bias = true};
    config_.embedding_norm = config_.final_norm = config_.norm;
    const double scale = file_.FloatOr("residual_scale", 1.0, 0.0, kMaxNumber);
    config_.residual_scale = scale == 0 ? 1.0f : static_cast<float>(scale);  // 0 means 1
    config_.logit_softcap =
        static_cast<float>(file_.FloatOr("logit_softcap", 0.0, 0.0, kMaxNumber));
    config_.block_lambdas = file_.FlagOr("use_block_lambdas", false);
    ReadLayers();
    for (LayerSpec& layer : config_.layers) layer.is_wrong = !file_.ok();
    return file_.status();
  }

 private:
  // One of a model's two mixers.
  struct Kind {
    std::string name;  // in the file, e.g. "swa"
    std::string rope;  // prefix of its RoPE fields: "" or "alt_"
    int value_layer;   // layer whose values its value residual mixes in
  };

  void ReadSizes() {
    model::ReadSizes(file_, 50304, 768, 12, config_);
    shape_.n_heads = 6;
    file_.Int("num_attention_heads", shape_.n_heads, 1, kMaxHiddenSize);
    if (!file_.ok()) return;
    const int64_t share = std::max<int64_t>(1, config_.hidden_size / shape_.n_heads);
    shape_.head_dim = static_cast<int>(share);
    file_.Int("d_head", shape_.head_dim, 1, kMaxHiddenSize);
    shape_.value_head_dim = shape_.head_dim;
    file_.Int("d_qk_head", shape_.head_dim, 1, kMaxHiddenSize);
    file_.Int("d_v_head", shape_.value_head_dim, 1, kMaxHiddenSize);
    shape_.n_kv_heads = shape_.n_heads;
    int kv_heads = shape_.n_heads;
    file_.Int("num_key_value_heads", kv_heads, 1, kMaxHiddenSize);
    if (shape_.n_heads % kv_heads != 0) {
      file_.Fail("num_key_value_heads", absl::StrCat("expected a divisor of num_attention_heads = ",
                                                     shape_.n_heads, ", got ", kv_heads));
    }
    config_.kv_group_in_file = shape_.n_heads / kv_heads;
  }

  // A class path, model.NAME_mixer.SequenceMixer, overrides the name.
  std::string ReadMixerName(const std::string& field, const std::string& fallback) {
    const std::string path_field = field + "_class_path";
    const std::string path = file_.StringOr(path_field, "");
    std::string name = file_.StringOr(field, fallback);
    const auto known = std::ranges::find(kPaths, path, &MixerPath::path);
    if (known != std::end(kPaths)) {
      name = known->name;
    } else if (!path.empty()) {
      constexpr std::string_view kBegin = "model.", kEnd = "_mixer.SequenceMixer";
      if (!path.starts_with(kBegin) || !path.ends_with(kEnd) ||
          path.size() < kBegin.size() + kEnd.size()) {
        file_.Fail(path_field,
                   absl::StrCat("expected model.NAME_mixer.SequenceMixer, got ", Quoted(path)));
        return name;
      }
      name = path.substr(kBegin.size(), path.size() - kBegin.size() - kEnd.size());
    }
    if (LayerType(name).empty()) {
      file_.Fail(path.empty() ? field : path_field,
                 absl::StrCat("mixer ", Quoted(name),
                              " is not supported; known: swa, gptalpha, gptalpha_bswa, ovq, kvm"));
    }
    return name;
  }

  void ReadLayers() {
    const int64_t every = file_.IntOr("alt_layer_every", -1, -1, kMaxLayers);
    // 1 also means no alternates: the original then has the main mixer and its RoPE in every layer,
    // and takes first values from layer 0, as without alternates.
    const bool alternates = every > 1;
    const std::string main = ReadMixerName("token_mixer", "rwkv7");
    const std::string alt = alternates ? ReadMixerName("alt_token_mixer", "swa") : main;
    const bool shares_values = file_.FlagOr("alt_share_v0", false);
    const FeedForwardSpec feed_forward = ReadFeedForward();
    if (config_.kv_group_in_file > 1 && (main != "kvm" || alt != "kvm")) {
      file_.Fail(
          "num_key_value_heads",
          absl::StrCat("expected num_attention_heads = ", shape_.n_heads,
                       " or null; fewer of them than queries' only go with kvm in all layers"));
    }
    if (!file_.ok()) return;
    const auto of_main = ReadMixer({main, "", alternates && !shares_values ? 1 : 0});
    const auto of_alt = alternates ? ReadMixer({alt, "alt_", 0}) : of_main;
    for (int i = 0; i < config_.n_layers; ++i) {
      const bool is_alt = alternates && i % every == 0;
      config_.layers.push_back(
          {LayerType(is_alt ? alt : main), is_alt ? of_alt : of_main, feed_forward});
    }
    config_.skip_connections = file_.FlagOr("use_skip_connections", false);
    const int half = config_.n_layers / 2;
    if (config_.skip_connections &&
        (config_.n_layers % 2 != 0 || (alternates && half % every != 0))) {
      file_.Fail(
          "use_skip_connections",
          "expected false: with this num_hidden_layers and alt_layer_every the original mixes "
          "up which layers alternate");
    }
  }

  FeedForwardSpec ReadFeedForward() {
    const double expansion = file_.FloatOr("ffn_expansion", 4.0, 0.0, 1024.0);
    const auto inner = static_cast<int64_t>(expansion * static_cast<double>(config_.hidden_size));
    if (file_.ok() && inner < 32) {
      file_.Fail("ffn_expansion",
                 absl::StrCat("expected a feed-forward of 32 channels or more, got ", inner,
                              " from a hidden_size of ", config_.hidden_size));
    }
    return {.kind = FeedForwardKind::kSquaredRelu,
            .width = inner / 32 * 32,
            .token_shift = file_.FlagOr("use_tokenshift_ffn", false)};
  }

  std::shared_ptr<kernels::MixerConfig> ReadMixer(const Kind& kind) {
    std::shared_ptr<kernels::MixerConfig> mixer;
    if (kind.name == "swa") mixer = Sliding(kind);
    if (kind.name == "gptalpha") mixer = Attention<kernels::FullConfig>(kind);
    if (kind.name == "gptalpha_bswa") {
      mixer = Attention<kernels::BlockSlidingConfig>(kind);
      mixer->names.insert(mixer->names.end(), {{"chunk_len"}, {"n_bswa_chunks"}, {"sink_len"}});
    }
    if (kind.name == "ovq") mixer = Ovq(kind);
    if (kind.name == "kvm") mixer = Kvm(kind);
    kernels::ReadFields(fields_, fields_, config_.hidden_size, *mixer);
    return mixer;
  }

  // A config with all that attentions have in common.
  template <class Config>
  std::shared_ptr<kernels::LayerConfig<Config>> Attention(const Kind& kind) {
    auto attention = std::make_shared<kernels::LayerConfig<Config>>();
    attention->fields.shape = shape_;
    attention->names = {{"head_dim", "d_qk_head", true},
                        {"value_head_dim", "d_v_head", true},
                        {"num_key_value_heads", "num_key_value_heads", true}};
    attention->fields.input = ReadInput(kind, attention->names);
    return attention;
  }

  kernels::AttentionInput ReadInput(const Kind& kind, kernels::FieldNames& names) {
    kernels::AttentionInput input;
    input.norm = kind.name == "ovq" ? kernels::HeadNorm::kL2 : kernels::HeadNorm::kLayer;
    ReadRope(kind, input.rope, names);
    constexpr std::string_view kShifts[] = {"rwkv", "none"};
    const std::string fields_of = kind.name == "gptalpha_bswa" ? "gptalpha" : kind.name;
    const bool shifts = file_.ChoiceOr(fields_of + "_token_shift_mode", kShifts) == 0;
    input.token_shift = file_.FlagOr("use_tokenshift_att", false) && shifts;
    using enum kernels::AttentionInput::ValueResidual;
    constexpr std::string_view kResiduals[] = {"rwkv", "linear", "rwkv_post_tokenshift"};
    constexpr kernels::AttentionInput::ValueResidual kOurs[] = {kGated, kLinear, kGatedAfterShift};
    const std::string residual_field = fields_of + "_value_residual_mode";
    const int residual = file_.ChoiceOr(residual_field, kResiduals);
    if (!file_.FlagOr("use_value_residual", true)) return input;
    input.value_residual = kOurs[residual];
    input.value_layer = kind.value_layer;
    input.gate_rank = GateRank(config_.hidden_size);
    input.own_gate_shift =
        shape_.v_width() / config_.kv_group_in_file != config_.hidden_size && input.shifts_gate();
    names.push_back({"value_residual", residual_field, /*is_filled=*/true});
    return input;
  }

  void ReadRope(const Kind& kind, kernels::RopeSpec& rope, kernels::FieldNames& names) {
    const std::string dims_field = kind.rope + "rope_partial_dim";
    const int64_t dims = file_.IntOr(dims_field, 64, 0, kMaxHiddenSize);
    rope.layout = kernels::RopeSpec::Layout::kPairs;
    rope.dims = kind.name == "ovq" ? 0 : static_cast<int>(dims);  // "ovq" has no RoPE
    // The original code always rounds these and the values of KVM's state; bfloat16 models were
    // trained with the rounding.
    rope.rounds_to_bf16 = config_.weights_dtype == kernels::DType::kBF16;
    names.push_back({"rope_dims", dims_field, /*is_filled=*/true});
    names.push_back({"rope_theta", kind.rope + "rope_theta"});
  }

  std::shared_ptr<kernels::MixerConfig> Sliding(const Kind& kind) {
    const auto sliding = Attention<kernels::SlidingConfig>(kind);
    const bool has_own = file_.IntOr("swa_window_size", -1, -1, kMaxWindow) > 0;
    const char* const field = has_own ? "swa_window_size" : "chunk_len";
    sliding->fields.window = 256;
    sliding->names.push_back({"sliding_window", field});
    return sliding;
  }

  std::shared_ptr<kernels::MixerConfig> Ovq(const Kind& kind) {
    const auto ovq = Attention<kernels::OvqConfig>(kind);
    ovq->names.insert(ovq->names.end(),
                      {{"chunk_size", "ovq_chunk_size"},
                       {"max_centroids", "ovq_max_centroids"},
                       {"min_state_size", "ovq_use_min_state_size", true},
                       {"normalize_centroids", "ovq_normalize_centroids", true},
                       {"counts_for_rates_only", "ovq_use_counts_for_lr_only", true},
                       {"delta_rule", "ovq_use_delta_rule", true}});
    kernels::OvqConfig& fields = ovq->fields;
    fields.normalize_centroids = file_.FlagOr("ovq_normalize_centroids", false);
    fields.min_state_size = file_.FlagOr("ovq_use_min_state_size", false);
    fields.counts_for_rates_only = file_.FlagOr("ovq_use_counts_for_lr_only", false);
    fields.delta_rule = file_.FlagOr("ovq_use_delta_rule", false);
    return ovq;
  }

  std::shared_ptr<kernels::MixerConfig> Kvm(const Kind& kind) {
    const auto kvm = Attention<kernels::KvmConfig>(kind);
    for (const char* field : {"chunk_len", "n_bswa_chunks", "sink_len", "state_budget_mode",
                              "state_growth_factor", "state_growth_exponent", "state_round_down",
                              "state_min_len", "state_saturation_n", "n_max_d_chunks"}) {
      kvm->names.push_back({field});
    }
    kvm->names.push_back({"masked_dims", "rope_partial_dim", /*is_filled=*/true});
    kvm->names.push_back({"use_vlens", "kvm_use_vlens", /*is_filled=*/true});
    kernels::KvmConfig& fields = kvm->fields;
    // The state's slots see only the channels without RoPE: the first rope_partial_dim (the main
    // mixer's field) are masked, or all of them if it is 0.
    const int64_t dims = file_.IntOr("rope_partial_dim", 64, 0, kMaxHiddenSize);
    fields.masked_dims = dims > 0 ? static_cast<int>(dims) : shape_.head_dim;
    fields.gate_keys = file_.FlagOr("kvm_use_merge_gate_keys", true);
    fields.gate_values = file_.FlagOr("kvm_use_merge_gate_values", true);
    fields.gate_first = file_.FlagOr("kvm_apply_merge_gate_to_initial_state", false);
    fields.gate_appends = file_.FlagOr("kvm_apply_merge_gate_to_appends", false);
    fields.head_temps = file_.FlagOr("kvm_use_head_temps", true);
    fields.value_lengths = file_.FlagOr("kvm_use_vlens", true);
    fields.round_values = config_.weights_dtype == kernels::DType::kBF16;
    return kvm;
  }

  const kernels::Attrs& fields_;
  kernels::AttrReader file_;
  ModelConfig& config_;
  kernels::AttentionShape shape_;
};

absl::Status ReadRwkv7(ConfigFile& file, ModelConfig& config) {
  return Reader(file.fields, config).Read();
}

constexpr Renamed kRwkv7Names[] = {
    {"model.embed_tokens.", "transformer.wte."},
    {"model.embed_norm.", "transformer.ln_emb."},
    {"model.norm.", "transformer.ln_head."},
    {"model.skip_weights", "transformer.skip_weights"},
    {"input_layernorm.", "ln_attn."},
    {"post_attention_layernorm.", "ln_mlp."},
    {"mlp.up_proj.", "mlp.c_fc."},
    {"mlp.down_proj.", "mlp.c_proj."},
    {"mlp.shift", "mlp.x_k"},
    {"self_attn.q_proj.", "attn.c_q."},
    {"self_attn.k_proj.", "attn.c_k."},
    {"self_attn.v_proj.", "attn.c_v."},
    {"self_attn.o_proj.", "attn.c_proj."},
    {"self_attn.q_shift", "attn.x_q"},
    {"self_attn.k_shift", "attn.x_k"},
    {"self_attn.v_shift", "attn.x_v"},
    {"self_attn.value_gate.bias", "attn.v_gate0"},
    {"self_attn.value_gate.down.", "attn.v_gate1."},
    {"self_attn.value_gate.up.", "attn.v_gate2."},
    {"self_attn.value_gate.shift", "attn.x_v_hidden"},
    {"self_attn.value_residual", "attn.lamb"},
    {"self_attn.q_norm.", "attn.ln_q."},
    {"self_attn.k_norm.", "attn.ln_k."},
    {"self_attn.", "attn."},
};

// Whether the first dimension is that of the heads of keys and values. The gate's input may be
// shifted by the first of the values' shares.
bool IsOfKvHeads(std::string_view leaf, const kernels::Shape& shape,
                 const kernels::AttentionShape& heads) {
  constexpr std::string_view kLeaves[] = {"self_attn.k_proj.weight",
                                          "self_attn.v_proj.weight",
                                          "self_attn.k_shift",
                                          "self_attn.value_gate.bias",
                                          "self_attn.value_gate.up.weight",
                                          "self_attn.key_weighting.weight"};
  return std::ranges::find(kLeaves, leaf) != std::end(kLeaves) ||
         (leaf == "self_attn.v_shift" && shape.elements() == heads.v_width());
}

std::vector<TensorInFile> Rwkv7Tensor(const ModelConfig& config, const TensorName& name,
                                      const kernels::Shape& shape) {
  TensorInFile tensor = {name.As(kRwkv7Names, "transformer.h."), shape};
  if (const int group = config.kv_group_in_file; group > 1 && name.layer >= 0) {
    const kernels::AttentionShape& heads = config.layers[name.layer].mixer->attention()->shape;
    if (IsOfKvHeads(name.leaf, shape, heads)) {
      tensor.shape = shape.rank() == 1 ? kernels::Shape{shape[0] / group}
                                       : kernels::Shape{shape[0] / group, shape[1]};
      tensor.run = tensor.stride = shape.elements() / heads.n_heads;
      tensor.repeat = group;
    }
  }
  if (name.leaf == "mlp.shift" || name.leaf == "self_attn.value_gate.bias") {
    tensor.shape = {1, 1, tensor.shape.elements()};
  }
  if (name.leaf == "self_attn.value_residual") tensor.shape = {};
  return {tensor};
}

// Models with value residuals and no token shift also store attn.x_v.
bool IsUnusedInRwkv7(std::string_view name) {
  return name.starts_with("transformer.h.") && name.ends_with(".attn.x_v");
}

}  // namespace

const Family kRwkv7Backbone = {.model_type = "rwkv7backbone",
                               .read = ReadRwkv7,
                               .tensor = Rwkv7Tensor,
                               .is_unused = IsUnusedInRwkv7};

}  // namespace ovq::model
