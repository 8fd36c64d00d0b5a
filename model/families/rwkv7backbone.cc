// Family rwkv7backbone, the KVM paper's code (recursal/KVM-paper): a decoder of LayerNorms, token
// shifts and squared ReLUs around one mixer, or a main and an alternate one in turn. Defaults are
// those of that code.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/families/family.h"

namespace ovq {
namespace {

constexpr double kMaxNumber = 1e15;
constexpr int64_t kMaxWindow = 1 << 24;

struct MixerName {
  std::string_view in_file, layer_type;
};
constexpr MixerName kMixers[] = {{"swa", "sliding_attention"},
                                 {"gptalpha", "full_attention"},
                                 {"gptalpha_bswa", "block_sliding_attention"},
                                 {"ovq", "ovq_attention"},
                                 {"kvm", "kvm_attention"}};

std::string LayerType(std::string_view in_file) {
  const auto* mixer = std::ranges::find(kMixers, in_file, &MixerName::in_file);
  return mixer == std::end(kMixers) ? "" : std::string(mixer->layer_type);
}

// 1.3 sqrt(width) rounded to a multiple of 32, half to even as in Python, at least 32.
int64_t GateRank(int64_t width) {
  const double steps = std::nearbyint(1.3 * std::sqrt(static_cast<double>(width)) / 32);
  return std::max<int64_t>(32, 32 * static_cast<int64_t>(steps));
}

// Reads the file's fields under its own names and passes mixers theirs.
class Reader {
 public:
  Reader(const Attrs& fields, ModelConfig& config)
      : fields_(fields), file_(fields), config_(config) {}
  absl::Status Read();

 private:
  // One of a model's two mixers.
  struct Kind {
    std::string name;  // in the file, e.g. "swa"
    std::string rope;  // prefix of its RoPE fields: "" or "alt_"
    int value_layer;   // layer whose values its value residual mixes in
  };

  void ReadSizes();
  std::string ReadMixer(const std::string& field, const std::string& fallback);
  void ReadLayers();
  FeedForwardSpec ReadFeedForward();
  MixerFields MakeMixerFields(const Kind& kind);
  void SetRope(const Kind& kind, Attrs& model);
  void SetInput(const Kind& kind, Attrs& model);
  void SetOvq(Attrs& ovq);
  void SetKvm(Attrs& kvm);
  void SetFlag(const std::string& from, bool fallback, Attrs& to, const std::string& name) {
    to.Set(name, file_.FlagOr(from, fallback), from);
  }

  const Attrs& fields_;
  AttrReader file_;
  ModelConfig& config_;
  int64_t n_heads_ = 0, head_dim_ = 0, value_head_dim_ = 0;
};

void Reader::ReadSizes() {
  config_.vocab_size = file_.IntOr("vocab_size", 50304, 1, kMaxVocab);
  config_.hidden_size = file_.IntOr("hidden_size", 768, 1, kMaxHiddenSize);
  config_.n_layers = static_cast<int>(file_.IntOr("num_hidden_layers", 12, 1, kMaxLayers));
  n_heads_ = file_.IntOr("num_attention_heads", 6, 1, kMaxHiddenSize);
  if (!file_.ok()) return;
  const int64_t share = std::max<int64_t>(1, config_.hidden_size / n_heads_);
  const int64_t head_dim = file_.IntOr("d_head", share, 1, kMaxHiddenSize);
  head_dim_ = file_.IntOr("d_qk_head", head_dim, 1, kMaxHiddenSize);
  value_head_dim_ = file_.IntOr("d_v_head", head_dim, 1, kMaxHiddenSize);
  if (file_.IntOr("num_key_value_heads", n_heads_, 1, kMaxHiddenSize) != n_heads_) {
    file_.Fail("num_key_value_heads",
               absl::StrCat("expected num_attention_heads = ", n_heads_, " or null"));
  }
}

// A class path, model.NAME_mixer.SequenceMixer, overrides the name.
std::string Reader::ReadMixer(const std::string& field, const std::string& fallback) {
  const std::string path_field = field + "_class_path";
  const std::string path = file_.StringOr(path_field, "");
  std::string name = file_.StringOr(field, fallback);
  if (!path.empty()) {
    constexpr std::string_view kBegin = "model.", kEnd = "_mixer.SequenceMixer";
    if (!path.starts_with(kBegin) || !path.ends_with(kEnd) ||
        path.size() < kBegin.size() + kEnd.size()) {
      file_.Fail(path_field,
                 absl::StrCat("expected model.NAME_mixer.SequenceMixer, got ", Quoted(path)));
      return name;
    }
    name = path.substr(kBegin.size(), path.size() - kBegin.size() - kEnd.size());
  }
  const std::string type = LayerType(name);
  if (type.empty() || !FindMixer(type)) {
    std::string known;
    for (const MixerName& mixer : kMixers) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(mixer.in_file));
    }
    file_.Fail(path.empty() ? field : path_field,
               absl::StrCat("mixer ", Quoted(name), " is not supported; known: ", known));
  }
  return name;
}

void Reader::SetRope(const Kind& kind, Attrs& model) {
  const std::string dims_field = kind.rope + "rope_partial_dim";
  const int64_t dims = file_.IntOr(dims_field, 64, 0, kMaxHiddenSize);
  const bool turns = dims > 0 && kind.name != "ovq";  // "ovq" has no RoPE
  model.Set("rope", std::string(turns ? "pairs" : "none"), dims_field);
  model.Set("rope_dims", dims, dims_field);
  fields_.CopyTo(model, kind.rope + "rope_theta", "rope_theta");
  // The original code always rounds these and the values of KVM's state; bfloat16 models were
  // trained with the rounding.
  model.Set("rope_rounds_to_bfloat16", config_.weights_dtype == DType::kBF16);
}

void Reader::SetInput(const Kind& kind, Attrs& model) {
  constexpr std::string_view kShifts[] = {"rwkv", "none"};
  const std::string fields_of = kind.name == "gptalpha_bswa" ? "gptalpha" : kind.name;
  const bool shifts = file_.ChoiceOr(fields_of + "_token_shift_mode", kShifts) == 0;
  model.Set("token_shift", file_.FlagOr("use_tokenshift_att", false) && shifts);
  constexpr std::string_view kResiduals[] = {"rwkv", "linear", "rwkv_post_tokenshift"};
  constexpr const char* kOurs[] = {"gated", "linear", "gated_after_shift"};
  const std::string residual_field = fields_of + "_value_residual_mode";
  const int residual = file_.ChoiceOr(residual_field, kResiduals);
  if (!file_.FlagOr("use_value_residual", true)) return;
  model.Set("value_residual", std::string(kOurs[residual]), residual_field);
  model.Set("value_residual_layer", int64_t{kind.value_layer});
  model.Set("value_gate_rank", GateRank(config_.hidden_size));
}

void Reader::SetOvq(Attrs& ovq) {
  fields_.CopyTo(ovq, "ovq_chunk_size", "chunk_size");
  fields_.CopyTo(ovq, "ovq_max_centroids", "max_centroids");
  SetFlag("ovq_normalize_centroids", false, ovq, "normalize_centroids");
  SetFlag("ovq_use_min_state_size", false, ovq, "min_state_size");
  SetFlag("ovq_use_counts_for_lr_only", false, ovq, "counts_for_rates_only");
  SetFlag("ovq_use_delta_rule", false, ovq, "delta_rule");
}

void Reader::SetKvm(Attrs& kvm) {
  for (const char* field : {"chunk_len", "n_bswa_chunks", "sink_len", "state_budget_mode",
                            "state_growth_factor", "state_growth_exponent", "state_round_down",
                            "state_min_len", "state_saturation_n", "n_max_d_chunks"}) {
    fields_.CopyTo(kvm, field, field);
  }
  // The state's slots see only the channels without RoPE: the first rope_partial_dim (the main
  // mixer's field) are masked, or all of them if it is 0.
  const int64_t dims = file_.IntOr("rope_partial_dim", 64, 0, kMaxHiddenSize);
  kvm.Set("masked_dims", dims > 0 ? dims : head_dim_, "rope_partial_dim");
  SetFlag("kvm_use_merge_gate_keys", true, kvm, "use_merge_gate_keys");
  SetFlag("kvm_use_merge_gate_values", true, kvm, "use_merge_gate_values");
  SetFlag("kvm_use_head_temps", true, kvm, "use_head_temps");
  SetFlag("kvm_use_vlens", true, kvm, "use_vlens");
  kvm.Set("values_round_to_bfloat16", config_.weights_dtype == DType::kBF16);
  SetFlag("kvm_apply_merge_gate_to_initial_state", false, kvm, "apply_merge_gate_to_initial_state");
  SetFlag("kvm_apply_merge_gate_to_appends", true, kvm, "apply_merge_gate_to_appends");
}

MixerFields Reader::MakeMixerFields(const Kind& kind) {
  MixerFields fields;
  Attrs& model = fields.model;
  model.Set("num_attention_heads", n_heads_);
  model.Set("head_dim", head_dim_, "d_qk_head");
  model.Set("value_head_dim", value_head_dim_, "d_v_head");
  model.Set("qk_norm", std::string(kind.name == "ovq" ? "l2" : "layer"));
  SetRope(kind, model);
  SetInput(kind, model);
  if (kind.name == "swa") {
    const bool has_own = file_.IntOr("swa_window_size", -1, -1, kMaxWindow) > 0;
    const char* field = has_own ? "swa_window_size" : "chunk_len";
    model.Set("sliding_window", file_.IntOr(field, 256, 1, kMaxWindow), field);
  }
  if (kind.name == "gptalpha_bswa") {
    for (const char* field : {"chunk_len", "n_bswa_chunks", "sink_len"}) {
      fields_.CopyTo(fields.sections["bswa"], field, field);
    }
  }
  if (kind.name == "ovq") SetOvq(fields.sections["ovq"]);
  if (kind.name == "kvm") SetKvm(fields.sections["kvm"]);
  return fields;
}

FeedForwardSpec Reader::ReadFeedForward() {
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

void Reader::ReadLayers() {
  const int64_t every = file_.IntOr("alt_layer_every", -1, -1, kMaxLayers);
  // 1 also means no alternates: the original then has the main mixer and its RoPE in every layer,
  // and takes first values from layer 0, as without alternates.
  const bool alternates = every > 1;
  const std::string main = ReadMixer("token_mixer", "rwkv7");
  const std::string alt = alternates ? ReadMixer("alt_token_mixer", "swa") : main;
  const bool shares_values = file_.FlagOr("alt_share_v0", false);
  const FeedForwardSpec feed_forward = ReadFeedForward();
  if (!file_.ok()) return;
  config_.mixer_fields.push_back(MakeMixerFields({main, "", alternates && !shares_values ? 1 : 0}));
  if (alternates) config_.mixer_fields.push_back(MakeMixerFields({alt, "alt_", 0}));
  for (int i = 0; i < config_.n_layers; ++i) {
    const bool is_alt = alternates && i % every == 0;
    config_.layers.push_back({LayerType(is_alt ? alt : main), is_alt ? 1 : 0, feed_forward});
  }
  config_.skip_connections = file_.FlagOr("use_skip_connections", false);
  const int half = config_.n_layers / 2;
  if (config_.skip_connections &&
      (config_.n_layers % 2 != 0 || (alternates && half % every != 0))) {
    file_.Fail("use_skip_connections",
               "expected false: with this num_hidden_layers and alt_layer_every the original mixes "
               "up which layers alternate");
  }
}

absl::Status Reader::Read() {
  ReadSizes();
  if (!file_.ok()) return file_.status();
  config_.norm = {.kind = NormKind::kLayer, .eps = 1e-5f, .bias = true};
  config_.embedding_norm = config_.final_norm = config_.norm;
  const double scale = file_.FloatOr("residual_scale", 1.0, 0.0, kMaxNumber);
  config_.residual_scale = scale == 0 ? 1.0f : static_cast<float>(scale);  // 0 means 1
  config_.logit_softcap = static_cast<float>(file_.FloatOr("logit_softcap", 0.0, 0.0, kMaxNumber));
  config_.block_lambdas = file_.FlagOr("use_block_lambdas", false);
  ReadLayers();
  for (LayerSpec& layer : config_.layers) layer.is_wrong = !file_.ok();
  return file_.status();
}

absl::Status Read(const nlohmann::json&, const Attrs& fields, ModelConfig& config) {
  return Reader(fields, config).Read();
}

struct Renamed {
  std::string_view name, in_file;
  enum { kSame, kThreeDimensions, kScalar } shape = kSame;
};
constexpr Renamed kGlobal[] = {
    {"model.embed_tokens.weight", "transformer.wte.weight"},
    {"model.embed_norm.weight", "transformer.ln_emb.weight"},
    {"model.embed_norm.bias", "transformer.ln_emb.bias"},
    {"model.norm.weight", "transformer.ln_head.weight"},
    {"model.norm.bias", "transformer.ln_head.bias"},
    {"model.skip_weights", "transformer.skip_weights"},
};
constexpr Renamed kOfLayer[] = {
    {"input_layernorm.weight", "ln_attn.weight"},
    {"input_layernorm.bias", "ln_attn.bias"},
    {"post_attention_layernorm.weight", "ln_mlp.weight"},
    {"post_attention_layernorm.bias", "ln_mlp.bias"},
    {"lambdas", "lambdas"},
    {"mlp.up_proj.weight", "mlp.c_fc.weight"},
    {"mlp.down_proj.weight", "mlp.c_proj.weight"},
    {"mlp.shift", "mlp.x_k", Renamed::kThreeDimensions},
    {"self_attn.q_proj.weight", "attn.c_q.weight"},
    {"self_attn.k_proj.weight", "attn.c_k.weight"},
    {"self_attn.v_proj.weight", "attn.c_v.weight"},
    {"self_attn.o_proj.weight", "attn.c_proj.weight"},
    {"self_attn.q_shift", "attn.x_q"},
    {"self_attn.k_shift", "attn.x_k"},
    {"self_attn.v_shift", "attn.x_v"},
    {"self_attn.value_gate.bias", "attn.v_gate0", Renamed::kThreeDimensions},
    {"self_attn.value_gate.down.weight", "attn.v_gate1.weight"},
    {"self_attn.value_gate.up.weight", "attn.v_gate2.weight"},
    {"self_attn.value_residual", "attn.lamb", Renamed::kScalar},
    {"self_attn.q_norm.weight", "attn.ln_q.weight"},
    {"self_attn.q_norm.bias", "attn.ln_q.bias"},
    {"self_attn.k_norm.weight", "attn.ln_k.weight"},
    {"self_attn.k_norm.bias", "attn.ln_k.bias"},
    {"self_attn.beta", "attn.beta"},
    {"self_attn.ln_s_k.weight", "attn.ln_s_k.weight"},
    {"self_attn.ln_s_k.bias", "attn.ln_s_k.bias"},
    {"self_attn.key_weighting.weight", "attn.key_weighting.weight"},
    {"self_attn.front_head_temp", "attn.front_head_temp"},
    {"self_attn.state_head_temp", "attn.state_head_temp"},
};

std::vector<TensorInFile> Tensor(const ModelConfig&, std::string_view name, const Shape& shape) {
  std::string_view leaf = name;
  std::string prefix;
  std::span<const Renamed> table = kGlobal;
  constexpr std::string_view kLayers = "model.layers.";
  if (leaf.starts_with(kLayers)) {
    leaf.remove_prefix(kLayers.size());
    const size_t dot = leaf.find('.');
    prefix = absl::StrCat("transformer.h.", std::string(leaf.substr(0, dot)), ".");
    leaf.remove_prefix(dot + 1);
    table = kOfLayer;
  }
  const auto renamed = std::ranges::find(table, leaf, &Renamed::name);
  if (renamed == table.end()) return {{std::string(name), shape}};
  TensorInFile tensor = {absl::StrCat(prefix, std::string(renamed->in_file)), shape};
  if (renamed->shape == Renamed::kThreeDimensions) tensor.shape = {1, 1, shape.elements()};
  if (renamed->shape == Renamed::kScalar) tensor.shape = {};
  return {tensor};
}

// Models with value residuals and no token shift also store attn.x_v.
bool IsUnused(std::string_view name) {
  return name.starts_with("transformer.h.") && name.ends_with(".attn.x_v");
}

}  // namespace

const Family kRwkv7Backbone = {"rwkv7backbone", /*is_strict=*/false, Read, Tensor, IsUnused};

}  // namespace ovq
