// Family kimi_linear of Moonshot AI: Kimi Delta Attention, and latent attention without positions,
// of which a session keeps a latent for each token; experts in most layers. Defaults are those of
// the authors' code.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kernels/mixers/recurrent/matrix_state.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

// The sizes of a latent layer: heads, rank of keys and values, channels of a head's key that come
// from the latent and beside it, and of its value.
struct LatentSizes {
  int64_t heads, rank, key, beside, value;
};

// Reads them; 0 where they are wrong.
LatentSizes ReadLatent(kernels::AttrReader& file) {
  return {.heads = file.IntOr("num_attention_heads", 32, 1, 4096),
          .rank = file.Int("kv_lora_rank", 1, 1 << 16),
          .key = file.Int("qk_nope_head_dim", 1, 1 << 16),
          .beside = file.Int("qk_rope_head_dim", 1, 1 << 16),
          .value = file.Int("v_head_dim", 1, 1 << 16)};
}

// Scores q . (W_uk c) = (W_uk^T q) . c, and values W_uv c after the sum over tokens: with both
// up-projections absorbed into those of queries and output, all heads read one key [c | beside] and
// one value c of a token.
std::shared_ptr<kernels::MixerConfig> LatentAttention(HubReader& reader, const LatentSizes& sizes) {
  auto attention = std::make_shared<kernels::LayerConfig<kernels::FullConfig>>();
  kernels::AttentionShape& shape = attention->fields.shape;
  shape.n_heads = static_cast<int>(sizes.heads);
  shape.n_kv_heads = 1;
  shape.head_dim = static_cast<int>(sizes.rank + sizes.beside);
  shape.value_head_dim = static_cast<int>(sizes.rank);
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kNone;
  input.score_scale = static_cast<float>(
      1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, sizes.key + sizes.beside))));
  input.latent_norm = true;
  input.latent_norm_eps = 1e-6f;  // whatever rms_norm_eps says
  attention->names = {{"num_attention_heads"}, {"head_dim", "kv_lora_rank", /*is_filled=*/true}};
  reader.ReadMixer(*attention);
  return attention;
}

std::shared_ptr<kernels::MixerConfig> DeltaAttention(const ConfigFile& all, ModelConfig& config) {
  auto kda = std::make_shared<kernels::LayerConfig<kernels::GatedDeltaNetConfig>>();
  kernels::Attrs section("linear_attn_config.");
  const nlohmann::json object = all.at("linear_attn_config");
  if (object.is_object()) FillAttrs(object, section, "linear_attn_config.");
  kernels::GatedDeltaNetConfig& fields = kda->fields;
  fields.value_head_dim = fields.decay_rank = fields.gate_rank =
      static_cast<int>(Peek(section, "head_dim", 1, kernels::kMaxStateKeyDim));
  fields.gate_activation = kernels::GatedDeltaNetConfig::GateActivation::kSigmoid;
  fields.norm_eps = config.norm.eps;
  kda->names = {{"num_heads"}, {"head_dim"}, {"conv_size", "short_conv_kernel_size"}};
  kda->section = "linear_attn_config.";
  kernels::ReadFields(section, section, config.hidden_size, *kda);
  return kda;
}

FeedForwardSpec KimiExperts(HubReader& reader) {
  constexpr std::string_view kScores[] = {"sigmoid", "softmax"};
  kernels::AttrReader& file = reader.file();
  MixtureSpec mixture = {.router_bias = true};
  reader.ReadExperts({"num_experts", 0}, {"num_experts_per_token", 0}, {"moe_intermediate_size", 0},
                     mixture);
  reader.ReadExpertGroups("num_expert_group", "topk_group", mixture);
  kernels::RouterSpec& router = mixture.router;
  router.score = file.ChoiceOr("moe_router_activation_func", kScores) == 0
                     ? kernels::RouterScore::kSigmoid
                     : kernels::RouterScore::kSoftmax;
  router.dropped = 0;
  router.normalizes = file.BoolOr("moe_renormalize", true) && router.n_chosen > 1;
  file.Float("routed_scaling_factor", router.scale, 0, 1e6);
  const int64_t n_shared = file.IntOr("num_shared_experts", 0, 0, kernels::kMaxExperts);
  return {
      .kind = FeedForwardKind::kGatedSilu, .width = n_shared * mixture.width, .mixture = mixture};
}

// Whether each layer is one of Kimi Delta Attention; the file's list counts them from 1.
std::vector<bool> DeltaLayers(const ConfigFile& all, kernels::AttrReader& file, int n_layers) {
  constexpr char kField[] = "linear_attn_config.kda_layers";
  std::vector<bool> is_delta(static_cast<size_t>(n_layers));
  const nlohmann::json object = all.at("linear_attn_config");
  const nlohmann::json layers =
      object.is_object() ? object.value("kda_layers", nlohmann::json()) : nlohmann::json();
  if (!layers.is_array()) file.Fail(kField, "expected a list of layers");
  for (size_t i = 0; layers.is_array() && i < layers.size(); ++i) {
    const nlohmann::json& layer = layers[i];
    if (layer.is_number_integer() && layer >= 1 && layer <= n_layers) {
      is_delta[layer.get<size_t>() - 1] = true;
    } else {
      file.Fail(kField, absl::StrCat("expected layers in [1, ", n_layers, "], got ", layer.dump()));
    }
  }
  return is_delta;
}

absl::Status ReadKimi(ConfigFile& all, ModelConfig& config) {
  HubReader reader(all, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({163840, 4096, 32, 32, 0, 0}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6);
  const LatentSizes sizes = ReadLatent(file);
  if (file.IntOr("num_key_value_heads", sizes.heads, 1, 4096) != sizes.heads) {
    file.Fail("num_key_value_heads", "expected num_attention_heads: the latent is shared by all");
  }
  if (!file.BoolOr("mla_use_nope", false)) {
    file.Fail("mla_use_nope", "expected true: latent attention with positions is not supported");
  }
  for (const char* field :
       {"q_lora_rank", "gate_lower_bound", "use_full_rank_gate", "mla_use_output_gate",
        "routed_expert_hidden_size", "attn_res_block_size"}) {
    if (all.at(field).is_null()) continue;
    file.Fail(field, "expected null: what it asks for is not supported");
  }
  const auto latent = LatentAttention(reader, sizes), delta = DeltaAttention(all, config);
  const FeedForwardSpec dense = {FeedForwardKind::kGatedSilu,
                                 file.IntOr("intermediate_size", 11008, 1, kMaxHiddenSize)};
  const bool has_experts = !all.at("num_experts").is_null();
  for (const char* field : {"num_experts_per_token", "moe_intermediate_size"}) {
    if (!has_experts || !all.at(field).is_null()) continue;
    file.Fail(field, "expected an integer beside num_experts, but it is missing");
  }
  const FeedForwardSpec experts = has_experts ? KimiExperts(reader) : dense;
  const int64_t first = file.IntOr("first_k_dense_replace", 0, 0, kMaxLayers);
  int64_t every = 1;
  file.Int("moe_layer_freq", every, 1, kMaxLayers);
  const std::vector<bool> delta_layers = DeltaLayers(all, file, config.n_layers);
  for (int i = 0; i < config.n_layers; ++i) {
    LayerSpec& layer = config.layers.emplace_back();
    const bool is_delta = delta_layers[static_cast<size_t>(i)];
    layer.type = is_delta ? "gated_delta_net" : "full_attention";
    layer.mixer = is_delta ? delta : latent;
    if (!is_delta) layer.latent_value_dim = sizes.value;
    layer.feed_forward = i >= first && i % every == 0 ? experts : dense;
  }
  return reader.Done();
}

// W_q and W_o of a latent layer with W_kvb absorbed, made of the tensors that a file has.
class Absorbed {
 public:
  // The weights outlive this.
  Absorbed(const ModelConfig& config, int layer, Weights& weights);

  // NotFound or InvalidArgument if the files' tensors are not there or have other shapes.
  absl::Status Check() const;
  // Rows of the queries' projection [H (rank + beside), d_model], the absorbed ones of a head
  // first:
  //   W[h, a] = sum_i W_kvb[h, i, a] W_q[h, i]   i < key, a < rank
  //   W[h, rank + j] = W_q[h, key + j]           j < beside
  void WriteQueries(int64_t first, std::span<float> rows) const;
  // Rows of the output's projection [d_model, H rank]:
  //   W[d, h, a] = sum_j W_o[d, h, j] W_kvb[h, key + j, a]   j < value, a < rank
  void WriteOutput(int64_t first, std::span<float> rows) const;

  kernels::Shape query_shape() const { return {of_.heads * (of_.rank + of_.beside), d_model_}; }
  kernels::Shape output_shape() const { return {d_model_, of_.heads * of_.rank}; }

 private:
  enum Part { kQ, kUp, kO };
  kernels::TensorView Get(Part part) const {  // made again, where it is a made one
    return *weights_->GetTensor(names_[part], shapes_[part]);
  }

  LatentSizes of_;
  int64_t d_model_;
  Weights* weights_;
  std::string names_[3];
  kernels::Shape shapes_[3];
};

Absorbed::Absorbed(const ModelConfig& config, int layer, Weights& weights)
    : d_model_(config.hidden_size), weights_(&weights) {
  const kernels::AttentionConfig& attention = *config.layers[layer].mixer->attention();
  const double scale = *attention.input.score_scale;
  of_.heads = attention.shape.n_heads;
  of_.rank = attention.shape.value_head_dim;
  of_.beside = attention.shape.head_dim - of_.rank;
  of_.key = std::lround(1 / (scale * scale)) - of_.beside;  // scale = 1 / sqrt(key + beside)
  of_.value = config.layers[layer].latent_value_dim;
  const char* const leaves[] = {"q_proj.weight", "kv_b_proj.weight", "o_proj.weight"};
  for (int part = 0; part < 3; ++part) {
    names_[part] = absl::StrCat(AbslView(kLayerPrefix), layer, ".self_attn.", leaves[part]);
  }
  shapes_[kQ] = {of_.heads * (of_.key + of_.beside), d_model_};
  shapes_[kUp] = {of_.heads * (of_.key + of_.value), of_.rank};
  shapes_[kO] = {d_model_, of_.heads * of_.value};
}

absl::Status Absorbed::Check() const {
  absl::Status problems;
  for (int part = 0; part < 3; ++part) {
    AddProblems(problems, weights_->GetTensor(names_[part], shapes_[part]).status());
  }
  weights_->FreeMade();
  return problems;
}

void Absorbed::WriteQueries(int64_t first, std::span<float> rows) const {
  const kernels::TensorView q = Get(kQ), up = Get(kUp);
  const int64_t in_head = of_.rank + of_.beside;
  std::vector<double> sum(static_cast<size_t>(d_model_));
  for (auto to = rows.begin(); to != rows.end(); to += d_model_, ++first) {
    const int64_t head = first / in_head, a = first % in_head;
    const int64_t queries = head * (of_.key + of_.beside), ups = head * (of_.key + of_.value);
    std::ranges::fill(sum, 0);
    const auto add = [&](double factor, int64_t row) {
      for (int64_t d = 0; d < d_model_; ++d) {
        sum[static_cast<size_t>(d)] += factor * kernels::FloatAt(q, row * d_model_ + d);
      }
    };
    if (a >= of_.rank) add(1, queries + of_.key + a - of_.rank);
    for (int64_t i = 0; a < of_.rank && i < of_.key; ++i) {
      add(kernels::FloatAt(up, (ups + i) * of_.rank + a), queries + i);
    }
    std::ranges::transform(sum, to, [](double s) { return static_cast<float>(s); });
  }
}

void Absorbed::WriteOutput(int64_t first, std::span<float> rows) const {
  const kernels::TensorView o = Get(kO), up = Get(kUp);
  std::vector<double> sum(static_cast<size_t>(of_.rank));
  int64_t head = first * of_.heads;  // counted over all rows
  for (auto to = rows.begin(); to != rows.end(); to += of_.rank, ++head) {
    const int64_t values = head % of_.heads * (of_.key + of_.value) + of_.key;
    std::ranges::fill(sum, 0);
    for (int64_t j = 0; j < of_.value; ++j) {
      const double factor = kernels::FloatAt(o, head * of_.value + j);
      for (int64_t a = 0; a < of_.rank; ++a) {
        sum[static_cast<size_t>(a)] += factor * kernels::FloatAt(up, (values + j) * of_.rank + a);
      }
    }
    std::ranges::transform(sum, to, [](double s) { return static_cast<float>(s); });
  }
}

constexpr char kQuery[] = "self_attn.q_proj.absorbed", kOutput[] = "self_attn.o_proj.absorbed";

bool IsLatent(const LayerSpec& layer) {
  const kernels::AttentionConfig* const attention =
      layer.mixer == nullptr ? nullptr : layer.mixer->attention();
  return attention != nullptr && attention->input.latent_norm;
}

absl::Status Prepare(const ModelConfig& config, Weights& weights) {
  absl::Status problems;
  for (int i = 0; i < std::ssize(config.layers); ++i) {
    if (config.layers[i].is_wrong || !IsLatent(config.layers[i])) continue;
    const auto absorbed = std::make_shared<const Absorbed>(config, i, weights);
    const absl::Status problem = absorbed->Check();
    AddProblems(problems, problem);
    const auto add = [&](const char* leaf, const kernels::Shape& shape,
                         void (Absorbed::*write)(int64_t, std::span<float>) const) {
      // A tensor that cannot be made is there all the same, so that no second error speaks of it.
      weights.Add(
          absl::StrCat(AbslView(kLayerPrefix), i, ".", leaf),
          {.shape = shape,
           .parts = {},
           .write = [absorbed, write, ok = problem.ok()](int64_t first, std::span<float> rows) {
             if (ok) return ((*absorbed).*write)(first, rows);
             std::ranges::fill(rows, 0.0f);
           }});
    };
    add(kQuery, absorbed->query_shape(), &Absorbed::WriteQueries);
    add(kOutput, absorbed->output_shape(), &Absorbed::WriteOutput);
  }
  return problems;
}

std::vector<TensorInFile> KimiTensor(const ModelConfig& config, const TensorName& name,
                                     const kernels::Shape& shape) {
  if (name.layer < 0) return {{name.As({}), shape}};
  const LayerSpec& layer = config.layers[name.layer];
  if (name.leaf.starts_with("mlp.") && layer.feed_forward.mixture) {
    constexpr Renamed kNames[] = {
        {"mlp.router.bias", "block_sparse_moe.gate.e_score_correction_bias"},
        {"mlp.router.", "block_sparse_moe.gate."},
        {"mlp.experts.", "block_sparse_moe.experts."},
        {"mlp.", "block_sparse_moe.shared_experts."}};
    std::string in_file = name.As(kNames);
    if (name.leaf.starts_with("mlp.experts.")) {
      for (const Renamed& weight : {Renamed{".gate_proj.", ".w1."}, Renamed{".down_proj.", ".w2."},
                                    Renamed{".up_proj.", ".w3."}}) {
        const size_t at = in_file.find(weight.begin);
        if (at != std::string::npos) in_file.replace(at, weight.begin.size(), weight.in_file);
      }
    }
    return {{in_file, shape}};
  }
  if (!IsLatent(layer)) {
    // A_log [1, 1, heads, 1]
    if (name.leaf == "self_attn.A_log") return {{name.As({}), {1, 1, shape[0], 1}}};
    return {{name.As({}), shape}};
  }
  constexpr char kDown[] = "self_attn.kv_a_proj_with_mqa.weight";
  if (name.leaf == "self_attn.q_proj.weight") return {{name.With(kQuery), shape}};
  if (name.leaf == "self_attn.o_proj.weight") return {{name.With(kOutput), shape}};
  if (name.leaf == "self_attn.k_proj.weight") return {{name.With(kDown), shape}};
  if (name.leaf == "self_attn.v_proj.weight") {  // the latent again: the first rows
    const int64_t rows = layer.mixer->attention()->shape.head_dim;
    return {{name.With(kDown), {rows, shape[1]}, shape.elements(), 0}};
  }
  constexpr Renamed kNames[] = {{"self_attn.kv_norm.", "self_attn.kv_a_layernorm."}};
  return {{name.As(kNames), shape}};
}

}  // namespace

const Family kKimiLinear = {.model_type = "kimi_linear",
                            .read = ReadKimi,
                            .tensor = KimiTensor,
                            .is_unused = IsUnusedInHub,
                            .prepare = Prepare};

}  // namespace ovq::model
