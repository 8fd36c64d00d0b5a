// Families llama (Llama, SmolLM2, TinyLlama), mistral, qwen2, qwen3, smollm3 and phi3 of
// transformers: one decoder of softmax attention with norms before its parts, and rows of what
// differs. Defaults are those of transformers' code.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

// Which layers slide.
enum class Windows : uint8_t {
  kNone,
  kAll,        // all, unless sliding_window is null
  kLast,       // with use_sliding_window: those from max_window_layers on, or as layer_types says
  kUnrotated,  // with use_sliding_window: those without RoPE, or as layer_types says
};

// Which projections of the attention have biases. kField: all, where attention_bias says so.
enum class Biases : uint8_t { kField, kNone, kQueriesKeysValues };

struct Row {
  HubSizes sizes;
  int64_t feed_forward_width;
  double eps = 1e-6;
  HubRope rope = {.types = kUsualRopes};
  bool is_tied = false;
  bool norms_heads = false;
  Biases biases = Biases::kField;
  bool has_mlp_bias = false;  // a field that says of biases of the feed-forward
  Windows windows = Windows::kNone;
  int64_t window = 4096;  // default of sliding_window; 0: none
};

// Tokens in the window that the file gives to layers; 0: it gives none.
int32_t ReadWindow(const Row& row, const ConfigFile& config_file, kernels::AttrReader& file) {
  if (row.windows == Windows::kNone) return 0;
  if (row.windows != Windows::kAll && !file.BoolOr("use_sliding_window", false)) return 0;
  const bool is_there = config_file.json.contains("sliding_window");
  if (is_there ? config_file.at("sliding_window").is_null() : row.window == 0) return 0;
  int64_t window = row.window;
  file.Int("sliding_window", window, 2, kMaxWindow);
  return static_cast<int32_t>(window);
}

// Whether each layer has RoPE: no_rope_layers has 1 for those that do.
std::vector<bool> ReadTurns(const Row& row, const ModelConfig& config, kernels::AttrReader& file) {
  std::vector<bool> turns(static_cast<size_t>(config.n_layers), true);
  if (row.windows != Windows::kUnrotated) return turns;
  int64_t every = 4;
  file.Int("no_rope_layer_interval", every, 1, kMaxLayers);
  for (int i = 0; i < config.n_layers; ++i) turns[i] = (i + 1) % every != 0;
  if (!file.Has("no_rope_layers")) return turns;
  const auto listed = file.IntPerLayer("no_rope_layers", config.n_layers, 0, 1);
  return {listed.begin(), listed.end()};
}

template <class Config>
std::shared_ptr<kernels::LayerConfig<Config>> LlamaAttention(const Row& row, HubReader& reader,
                                                             const ModelConfig& config,
                                                             bool turns) {
  auto attention = reader.Attention<Config>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = row.norms_heads ? kernels::HeadNorm::kRms : kernels::HeadNorm::kNone;
  input.norm_eps = config.norm.eps;
  if (row.biases != Biases::kField) {
    input.bias = row.biases == Biases::kQueriesKeysValues;
    input.output_has_bias = false;
    std::erase_if(attention->names, [](const auto& name) { return name.name == "attention_bias"; });
  }
  input.rope.dims = 0;
  if (turns) {
    reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names,
                   row.rope);
  }
  return attention;
}

struct LlamaMixers {
  std::shared_ptr<kernels::MixerConfig> full, sliding;
};
LlamaMixers MakeLlamaMixers(const Row& row, HubReader& reader, const ModelConfig& config,
                            bool turns, int32_t window) {
  const auto full = LlamaAttention<kernels::FullConfig>(row, reader, config, turns);
  const auto sliding = LlamaAttention<kernels::SlidingConfig>(row, reader, config, turns);
  sliding->fields.window = window;
  reader.ReadMixer(*full);
  reader.ReadMixer(*sliding);
  return {full, sliding};
}

// Refuses what no code of these families does, and lists of layers that contradict the windows.
void RefuseOtherThanLlama(const Row& row, const ConfigFile& config_file,
                          kernels::AttrReader& file) {
  const char* const refused = row.biases == Biases::kNone                ? "attention_bias"
                              : row.biases == Biases::kQueriesKeysValues ? "use_mrope"
                                                                         : nullptr;
  if (refused != nullptr && file.BoolOr(refused, false)) {
    file.Fail(refused, "expected false, got true");
  }
  if (row.windows != Windows::kAll || !config_file.fields.Has("layer_types")) return;
  const std::vector<std::string> types = file.Strings("layer_types");
  for (size_t i = 1; i < types.size(); ++i) {
    if (types[i] == types[0]) continue;
    file.Fail(absl::StrCat("layer_types[", i, "]"),
              absl::StrCat("expected one type for all layers, got ", types[0], " and ", types[i]));
  }
}

template <const Row& kRow>
absl::Status ReadLlama(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes(kRow.sizes, kRow.is_tied, "hidden_act", kSiluFirst);
  reader.ReadNorms("rms_norm_eps", kRow.eps);
  RefuseOtherThanLlama(kRow, config_file, file);
  const int32_t window = ReadWindow(kRow, config_file, file);
  // A window that no text of the model's positions fills is none: its memory would be taken at
  // once.
  const bool slides = window > 0 && window < MostPositions(config_file).value_or(INT64_MAX);
  const std::vector<bool> turns = ReadTurns(kRow, config, file);
  const int32_t kept = slides ? window : 0;
  const LlamaMixers rotary = MakeLlamaMixers(kRow, reader, config, true, kept),
                    without_positions = MakeLlamaMixers(kRow, reader, config, false, kept);
  const int64_t first_sliding =
      kRow.windows == Windows::kLast ? file.IntOr("max_window_layers", 28, 0, kMaxLayers) : 0;
  std::vector<HubLayer> kinds = {{"full_attention", "full_attention", rotary.full}};
  if (slides) kinds.push_back({"sliding_attention", "sliding_attention", rotary.sliding});
  if (window > 0 && !slides) kinds.push_back({"sliding_attention", "full_attention", rotary.full});
  const bool has_types = kRow.windows == Windows::kLast || kRow.windows == Windows::kUnrotated;
  reader.AddLayers(
      has_types ? "layer_types" : "", kinds,
      [&](int i) {
        const bool may_slide = kRow.windows == Windows::kUnrotated ? !turns[i] : i >= first_sliding;
        return slides && may_slide ? 1 : 0;
      },
      file.IntOr("intermediate_size", kRow.feed_forward_width, 1, kMaxHiddenSize));
  const bool has_bias = kRow.has_mlp_bias && file.BoolOr("mlp_bias", false);
  for (int i = 0; i < static_cast<int>(config.layers.size()) && i < config.n_layers; ++i) {
    LayerSpec& layer = config.layers[i];
    layer.feed_forward.bias = has_bias;
    if (turns[i] || layer.mixer == nullptr) continue;
    layer.mixer =
        layer.type == "full_attention" ? without_positions.full : without_positions.sliding;
  }
  return reader.Done();
}

constexpr Row kLlamaRow = {
    .sizes = {32000, 4096, 32, 32, 0, 0}, .feed_forward_width = 11008, .has_mlp_bias = true};
constexpr Row kMistralRow = {.sizes = {32000, 4096, 32, 32, 8, 0},
                             .feed_forward_width = 14336,
                             .biases = Biases::kNone,
                             .windows = Windows::kAll};
constexpr Row kQwen2Row = {.sizes = {151936, 4096, 32, 32, 32, 0},
                           .feed_forward_width = 22016,
                           .biases = Biases::kQueriesKeysValues,
                           .windows = Windows::kLast};
constexpr Row kQwen3Row = {.sizes = {151936, 4096, 32, 32, 32, 128},
                           .feed_forward_width = 22016,
                           .norms_heads = true,
                           .windows = Windows::kLast};
constexpr Row kSmolLm3Row = {.sizes = {128256, 2048, 36, 16, 4, 0},
                             .feed_forward_width = 11008,
                             .rope = {.theta = 2e6, .types = kUsualRopes},
                             .is_tied = true,
                             .has_mlp_bias = true,
                             .windows = Windows::kUnrotated,
                             .window = 0};
// Older files have other names for the same scaling.
constexpr RopeType kPhiRopes[] = {{"default", RopeScaling::kNone},
                                  {"longrope", RopeScaling::kLongRope},
                                  {"su", RopeScaling::kLongRope},
                                  {"yarn", RopeScaling::kLongRope}};
constexpr Row kPhi3Row = {.sizes = {32064, 3072, 32, 32, 0, 0},
                          .feed_forward_width = 8192,
                          .eps = 1e-5,
                          .rope = {.partial = 1, .types = kPhiRopes, .lengths = {4096, 4096}},
                          .biases = Biases::kNone,
                          .windows = Windows::kAll,
                          .window = 0};

// qkv_proj holds the rows of q, k and v, gate_up_proj those of gate and up, one after another.
std::vector<TensorInFile> PhiTensor(const ModelConfig& config, const TensorName& name,
                                    const kernels::Shape& shape) {
  constexpr Renamed kNames[] = {{"self_attn.q_proj.", "self_attn.qkv_proj."},
                                {"self_attn.k_proj.", "self_attn.qkv_proj."},
                                {"self_attn.v_proj.", "self_attn.qkv_proj."},
                                {"mlp.gate_proj.", "mlp.gate_up_proj."},
                                {"mlp.up_proj.", "mlp.gate_up_proj."}};
  const std::string whole = name.As(kNames), part = name.As({});
  if (whole == part) return {{whole, shape}};
  int64_t rows = 2 * shape[0], first = name.leaf.starts_with("mlp.up_proj.") ? shape[0] : 0;
  if (name.leaf.starts_with("self_attn.")) {
    const kernels::AttentionShape& heads = config.layers[name.layer].mixer->attention()->shape;
    rows = heads.q_width() + heads.k_width() + heads.v_width();
    if (name.leaf.starts_with("self_attn.k_proj.")) first = heads.q_width();
    if (name.leaf.starts_with("self_attn.v_proj.")) first = heads.q_width() + heads.k_width();
  }
  return {{whole, {rows, shape[1]}, shape.elements(), first * shape[1]}};
}

}  // namespace

const Family kLlama = {
    .model_type = "llama", .read = ReadLlama<kLlamaRow>, .is_unused = IsUnusedInHub};
const Family kMistral = {
    .model_type = "mistral", .read = ReadLlama<kMistralRow>, .is_unused = IsUnusedInHub};
const Family kQwen2 = {
    .model_type = "qwen2", .read = ReadLlama<kQwen2Row>, .is_unused = IsUnusedInHub};
const Family kQwen3 = {
    .model_type = "qwen3", .read = ReadLlama<kQwen3Row>, .is_unused = IsUnusedInHub};
const Family kSmolLm3 = {
    .model_type = "smollm3", .read = ReadLlama<kSmolLm3Row>, .is_unused = IsUnusedInHub};

const Family kPhi3 = {.model_type = "phi3",
                      .read = ReadLlama<kPhi3Row>,
                      .tensor = PhiTensor,
                      .is_unused = IsUnusedInHub};

}  // namespace ovq::model
