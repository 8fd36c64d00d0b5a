#include "model/inspect/shares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "kernels/common/state_memory.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/key_diff/key_diff.h"
#include "kernels/mixers/ovq/ovq.h"
#include "model/gguf/gguf_file.h"
#include "model/inspect/share_search.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "model/logits_reader.h"
#include "model/tokenizer.h"

namespace ovq::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPrefillTokens = 512;  // in a batch
constexpr size_t kMaxFileBytes = size_t{1} << 30;
// Slots for each token of the layers that are not bounded. A rule that keeps the first tokens
// exactly needs one; the paper's leaves n = T M / (T + M), which is T within 1.6% for M = 64 T.
constexpr int64_t kWide = 64;

struct Exam {
  std::vector<int32_t> tokens;
  std::vector<int32_t> scored;  // rising indices of the tokens that are predicted, at least 1
};

// A layer, and one of its key/value heads or -1 for all of them.
struct Unit {
  int layer, head;
};

// Sequences of a text: its equal parts, each behind the tokenizer's beginning of a text.
absl::StatusOr<std::vector<Exam>> ReadText(const ShareOptions& options, const std::string& text,
                                           const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> begin, tokenizer.Encode("", true));
  const auto n = static_cast<size_t>(2 * options.sequences);
  std::vector<Exam> exams(n);
  size_t from = 0;
  for (size_t i = 0; i < n; ++i) {
    size_t end = text.size() / n * (i + 1);
    if (i + 1 == n) end = text.size();
    // A part ends before a character.
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    ASSIGN_OR_RETURN(const std::vector<int32_t> part,
                     tokenizer.Encode(std::string_view(text).substr(from, end - from), false));
    from = end;
    Exam& exam = exams[i];
    exam.tokens = begin;
    exam.tokens.insert(exam.tokens.end(), part.begin(), part.end());
    if (std::ssize(exam.tokens) < options.tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tokens: part ", i + 1, " of ", n, " of ", options.file, " has ", exam.tokens.size(),
          " tokens, expected ", options.tokens, "; fewer --tokens or --sequences fit"));
    }
    exam.tokens.resize(static_cast<size_t>(options.tokens));
    for (size_t t = std::max<size_t>(1, begin.size()); t < exam.tokens.size(); ++t) {
      exam.scored.push_back(static_cast<int32_t>(t));
    }
  }
  return exams;
}

absl::StatusOr<Exam> ReadLine(const std::string& where, std::string_view line, int64_t vocab_size) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(line, where));
  Exam exam;
  const auto read = [&](const char* field, int64_t low, int64_t high, std::vector<int32_t>& list) {
    const nlohmann::json numbers = json.value(field, nlohmann::json());
    if (!numbers.is_array() || numbers.empty()) return false;
    for (const nlohmann::json& number : numbers) {
      if (!number.is_number_integer()) return false;
      const auto value = number.get<int64_t>();
      if (value < low || value > high) return false;
      list.push_back(static_cast<int32_t>(value));
    }
    return true;
  };
  if (!read("tokens", 0, vocab_size - 1, exam.tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": tokens: expected a list of ids from 0 to ", vocab_size - 1));
  }
  if (!read("scored", 1, std::ssize(exam.tokens) - 1, exam.scored) ||
      !std::ranges::is_sorted(exam.scored, std::less_equal<>())) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": scored: expected a rising list of indices from 1 to ", exam.tokens.size() - 1));
  }
  return exam;
}

absl::StatusOr<std::vector<Exam>> ReadExams(const ShareOptions& options, const std::string& folder,
                                            const ModelConfig& config) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(options.file, kMaxFileBytes));
  if (!options.file.ends_with(".jsonl")) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder, config));
    return ReadText(options, text, *tokenizer);
  }
  std::vector<Exam> exams;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  const int64_t wanted = 2 * options.sequences;
  if (std::ssize(lines) < wanted) {
    return absl::InvalidArgumentError(absl::StrCat("--sequences: expected ", wanted, " lines in ",
                                                   options.file, ", got ", lines.size()));
  }
  for (int64_t i = 0; i < wanted; ++i) {
    const absl::string_view line = lines[static_cast<size_t>(i)];
    ASSIGN_OR_RETURN(Exam exam, ReadLine(absl::StrCat(options.file, ":", i + 1),
                                         {line.data(), line.size()}, config.vocab_size));
    exams.push_back(std::move(exam));
  }
  return exams;
}

// Reads sequences with models of one device.
class Meter {
 public:
  explicit Meter(kernels::DeviceContext& context) : context_(context), memory_(context) {}

  // Bits per scored token under this slot cap: - sum of log2 p(token) / number of scored tokens.
  absl::StatusOr<double> Bits(const LanguageModel& model, std::span<const Exam* const> exams,
                              int64_t slot_cap) {
    double sum = 0;
    int64_t n = 0;
    for (const Exam* exam : exams) {
      ASSIGN_OR_RETURN(const double bits, ReadBits(model, *exam, static_cast<int32_t>(slot_cap)));
      sum += bits;
      n += std::ssize(exam->scored);
    }
    return sum / static_cast<double>(n);
  }

 private:
  absl::StatusOr<double> ReadBits(const LanguageModel& model, const Exam& exam, int32_t slot_cap) {
    const StateLayout& layout = model.layout();
    const size_t bytes = layout.virtual_bytes();
    std::byte* const state = memory_.Reserve(bytes);
    if (state == nullptr || !memory_.Commit(state, 0, bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no address range of ", bytes, " bytes for a session"));
    }
    for (const StateLayout::Image& image : layout.images()) {
      memory_.CopyIn(state + image.offset, image.bytes->data(), image.bytes->size());
    }
    double sum = 0;
    const std::span tokens(exam.tokens);
    auto next = exam.scored.begin();
    // The last token predicts none of the sequence.
    const auto n_read = static_cast<size_t>(exam.scored.back());
    for (size_t at = 0; at < n_read; at += kPrefillTokens) {
      const size_t n = std::min<size_t>(kPrefillTokens, n_read - at);
      Batch batch;
      batch.Add(tokens.subspan(at, n), static_cast<int64_t>(at), slot_cap, state, 0);
      LogitsReader reader;
      for (; next != exam.scored.end() && static_cast<size_t>(*next) <= at + n; ++next) {
        const auto row = static_cast<int64_t>(batch.logits_indices.size());
        batch.logits_indices.push_back(static_cast<int32_t>(static_cast<size_t>(*next) - 1 - at));
        reader.WantScore(row, exam.tokens[static_cast<size_t>(*next)], 0);
      }
      kernels::ScratchScope scope(context_);
      const kernels::TensorView logits = model.Forward(batch, context_, scope);
      if (batch.logits_indices.empty()) continue;
      reader.Read(context_, logits);
      for (size_t i = 0; i < batch.logits_indices.size(); ++i) {
        sum -= reader.Score(i).logprob.value_or(0);
      }
    }
    context_.Synchronize();
    memory_.Release(state, bytes);
    return sum / std::log(2.0);
  }

  kernels::DeviceContext& context_;
  kernels::StateMemory memory_;
};

// The config with `other` as the share of every layer that has slots, and `own` as the unit's.
ModelConfig WithShares(ModelConfig config, std::span<const Unit> units, double other,
                       const Unit* bounded = nullptr, double own = 0) {
  for (const Unit& unit : units) config.layers[static_cast<size_t>(unit.layer)].slot_shares.clear();
  for (const Unit& unit : units) {
    config.layers[static_cast<size_t>(unit.layer)].slot_shares.push_back(&unit == bounded ? own
                                                                                          : other);
  }
  return config;
}

ModelConfig WithShares(ModelConfig config, std::span<const Unit> units,
                       std::span<const double> shares) {
  config = WithShares(std::move(config), units, 1);
  std::vector<size_t> seen(config.layers.size());
  for (size_t i = 0; i < units.size(); ++i) {
    const auto layer = static_cast<size_t>(units[i].layer);
    config.layers[layer].slot_shares[seen[layer]++] = shares[i];
  }
  return config;
}

// Gives a field a value; false if it has that.
template <class T>
bool Change(T& field, double value) {
  const T to = static_cast<T>(value);
  return std::exchange(field, to) != to;
}

using kernels::DictionaryConfig;

// A setting of a rule that is tried, and kept where it loses less.
struct Setting {
  const char* name;        // in the report
  std::string_view field;  // of the section ovq
  double value;            // that is written there
  const char* said;
  std::array<std::string_view, 2> layer_types;   // that read the field
  bool (*set)(DictionaryConfig&, double value);  // false: it has it, or can't
};
constexpr std::string_view kPairs = "closest_pair_attention";

bool SetMergeVariance(DictionaryConfig& config, double value) {
  return kernels::MayHaveMergeVariance(config) && Change(config.rule.merge_variance, value);
}
bool SetValueWeight(DictionaryConfig& config, double value) {
  return Change(config.rule.value_weight, value);
}
constexpr Setting kSettings[] = {
    {"recent_half",
     "recent_tokens",
     kernels::kMaxSlotCap,
     "the newest half untouched",
     {kPairs, "key_diff_attention"},
     [](DictionaryConfig& config, double value) {
       return Change(config.rule.recent_tokens, value);
     }},
    {"variance",
     "variance",
     1,
     "the variance of slots' keys in their scores",
     {kPairs, "ovq_attention"},
     [](DictionaryConfig& config, double value) {
       return kernels::MayHaveVariance(config) && Change(config.variance, value);
     }},
    {"merge_variance",
     "merge_variance",
     1,
     "that variance in distances",
     {kPairs, kPairs},
     SetMergeVariance},
    {"merge_variance_twice",
     "merge_variance",
     2,
     "twice that variance in distances",
     {kPairs, kPairs},
     SetMergeVariance},
    {"light_values",
     "value_weight",
     0.1,
     "values of weight 0.1 in distances",
     {kPairs, kPairs},
     SetValueWeight},
    {"heavy_values",
     "value_weight",
     2,
     "values of weight 2 in distances",
     {kPairs, kPairs},
     SetValueWeight},
};

// Makes a setting in a layer with this config; false if it doesn't take it or has another config.
template <class Config>
bool Set(const Setting& setting, LayerSpec& layer) {
  using Fields = kernels::LayerConfig<Config>;
  const auto* const slots = dynamic_cast<const Fields*>(layer.mixer.get());
  if (slots == nullptr) return false;
  auto changed = std::make_shared<Fields>(*slots);
  if (!setting.set(changed->fields, setting.value)) return false;
  layer.mixer = std::move(changed);
  return true;
}

// The config with the setting; unset if no layer takes it.
std::optional<ModelConfig> With(const Setting& setting, ModelConfig config) {
  bool found = false;
  for (LayerSpec& layer : config.layers) {
    if (std::ranges::find(setting.layer_types, layer.type) == setting.layer_types.end()) continue;
    found |= Set<kernels::ClosestPairConfig>(setting, layer) ||
             Set<kernels::OvqConfig>(setting, layer) || Set<kernels::KeyDiffConfig>(setting, layer);
  }
  if (!found) return std::nullopt;
  return config;
}

// ovq.shares: an entry for each layer, a list where its heads have shares of their own.
Json AsEntries(std::span<const Unit> units, std::span<const double> shares) {
  Json entries = Json::array();
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].head < 0) {
      entries.push_back(shares[i]);
    } else if (units[i].head == 0) {
      entries.push_back(Json::array({shares[i]}));
    } else {
      entries.back().push_back(shares[i]);
    }
  }
  return entries;
}

// Sets a field of the section ovq for one rule. One value, which was every rule's, stays that of
// the others; of lists that is one with as many layers.
void SetForRule(Json& section, const std::string& field, const std::string& rule, Json value) {
  Json& of_rules = section[field];
  if (!of_rules.is_object()) {
    const Json before = std::exchange(of_rules, Json::object());
    const bool fits = before.is_number() || (before.is_array() && before.size() == value.size());
    for (const CachePolicy& policy : CachePolicies()) {
      if (fits && HasSlots(policy)) of_rules[policy.name] = before;
    }
  }
  of_rules[rule] = std::move(value);
}

absl::Status WriteShares(const std::string& folder, const ShareOptions& options,
                         const Json& entries, std::span<const Setting* const> settings) {
  const std::string path = ConfigPath(folder);
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(Json json, ParseOrderedObject(text, path));
  Json& section = json["ovq"];
  if (section.is_null()) section = Json::object();
  SetForRule(section, "shares", options.memory, entries);
  for (const Setting* setting : settings) {
    Json value = setting->value;
    if (std::trunc(setting->value) == setting->value) value = std::llround(setting->value);
    SetForRule(section, std::string(setting->field), options.memory, std::move(value));
  }
  const int indent = text.starts_with("{\n  ") ? 2 : 1;
  return WriteFile(path, json.dump(indent) + "\n");
}

// One measurement.
class ShareMeasurement {
 public:
  ShareMeasurement(const std::string& folder, const ShareOptions& options,
                   const std::function<void(const std::string&)>& say,
                   kernels::DeviceContext& context)
      : folder_(folder), options_(options), say_(say), context_(context), meter_(context) {}

  absl::StatusOr<Json> Run() {
    RETURN_IF_ERROR(Prepare());
    ASSIGN_OR_RETURN(const double exact_as_measured, Exact(measured_));
    report_["measured"]["exact"] = exact_as_measured;
    Say(absl::StrFormat(
        "%s, %d sequences of up to %d tokens, %d slots of each layer: exact %.4f "
        "bits per scored token",
        options_.file, options_.sequences, longest_, options_.slots, exact_as_measured));
    RETURN_IF_ERROR(TrySettings("equal"));
    ASSIGN_OR_RETURN(const std::vector<ShareCurve> curves, MeasureCurves());
    std::vector<double> shares = BestShares(curves);
    if (options_.by_head) {
      ASSIGN_OR_RETURN(shares, SharesOfHeads(shares, exact_as_measured));
    }
    const Json entries = AsEntries(units_, shares);
    config_ = WithShares(config_, units_, shares);
    RETURN_IF_ERROR(TrySettings("these"));
    ASSIGN_OR_RETURN(const double before, Bits(as_it_was_, others_));
    ASSIGN_OR_RETURN(const double after, Bits(config_, others_));
    ASSIGN_OR_RETURN(const double exact, Exact(others_));
    report_["shares"] = entries;
    std::string kept;
    for (const Setting& setting : kSettings) {
      const bool is_kept = std::ranges::find(kept_, &setting) != kept_.end();
      report_[setting.name] = is_kept;
      if (is_kept) absl::StrAppend(&kept, ", ", setting.said);
    }
    report_["others"] = {{"exact", exact}, {"before", before}, {"after", after}};
    Say(
        absl::StrFormat("shares %s%s\n%d other sequences: exact %.4f, as config.json says %.4f, "
                        "with these %.4f bits per scored token",
                        entries.dump(), kept, options_.sequences, exact, before, after));
    const bool better = after < before;
    report_["written"] = options_.write && better;
    if (options_.write && !better) Say("config.json stays: they lose no less than it does");
    if (options_.write && better) {
      RETURN_IF_ERROR(WriteShares(folder_, options_, entries, kept_));
    }
    return report_;
  }

 private:
  using Exams = std::vector<const Exam*>;

  void Say(const std::string& line) const { say_(line); }

  absl::Status Prepare() {
    const CachePolicy& policy = *FindCachePolicy(options_.memory);
    ASSIGN_OR_RETURN(as_it_was_, LoadConfig(folder_, policy));
    for (int i = 0; i < as_it_was_.n_layers; ++i) {
      const LayerSpec& layer = as_it_was_.layers[static_cast<size_t>(i)];
      if (layer.type != policy.layer_type) continue;
      units_.push_back({i, -1});
      for (int head = 0; head < layer.mixer->attention()->shape.n_kv_heads; ++head) {
        heads_.push_back({i, head});
      }
    }
    const std::vector<Unit>& shared = options_.by_head ? heads_ : units_;
    if (shared.size() < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("--memory: by ", options_.memory, " ", shared.size(),
                       options_.by_head ? " heads" : " layers", " of ", folder_,
                       " have slots; there is nothing to share"));
    }
    config_ = WithShares(as_it_was_, units_, 1);
    ASSIGN_OR_RETURN(exams_, ReadExams(options_, folder_, config_));
    for (size_t i = 0; i < exams_.size(); ++i) {
      (i % 2 == 0 ? measured_ : others_).push_back(&exams_[i]);
      longest_ = std::max(longest_, std::ssize(exams_[i].tokens));
    }
    for (const double share : ShareLadder(std::ssize(units_))) {
      slots_[share] = std::max<int64_t>(kernels::kMinSlotCap,
                                        std::llround(share * static_cast<double>(options_.slots)));
    }
    // Every other layer has this many times the slots of the one that is bounded.
    const int64_t wide = policy.is_exact_at_first ? longest_ : kWide * longest_;
    const int64_t fewest = slots_.begin()->second;
    width_ = std::max(1.0, static_cast<double>(wide) / static_cast<double>(fewest));
    report_ = {{"memory", options_.memory}, {"slots", options_.slots}, {"tokens", longest_}};
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::unique_ptr<LanguageModel>>> Load(
      std::vector<ModelConfig> configs) const {
    ModelOptions options;
    options.state_dtype = config_.default_dtype();
    options.limits = {.max_slot_cap = std::max(slots_.rbegin()->second, longest_),
                      .max_unbounded_tokens = longest_ + kPrefillTokens};
    return LanguageModel::LoadEach(folder_, options, std::move(configs), context_);
  }

  absl::StatusOr<double> Bits(ModelConfig config, const Exams& exams) {
    std::vector<ModelConfig> configs;
    configs.push_back(std::move(config));
    ASSIGN_OR_RETURN(const auto models, Load(std::move(configs)));
    return meter_.Bits(*models.front(), exams, options_.slots);
  }
  absl::StatusOr<double> Exact(const Exams& exams) {
    const double wide = width_ * static_cast<double>(slots_.begin()->second);
    return Bits(WithShares(config_, units_, wide / static_cast<double>(options_.slots)), exams);
  }

  // Tries one setting behind another and leaves those in config_ that lose less, of one field the
  // last. shares: which ones config_ has.
  absl::Status TrySettings(const std::string& shares) {
    ASSIGN_OR_RETURN(double least, Bits(config_, measured_));
    report_["measured"][shares] = least;
    Say(absl::StrFormat("with %s shares %.4f", shares, least));
    for (const Setting& setting : kSettings) {
      std::optional<ModelConfig> changed = With(setting, config_);
      if (!changed) continue;
      ASSIGN_OR_RETURN(const double bits, Bits(*changed, measured_));
      report_["measured"][absl::StrCat(shares, "_", setting.name)] = bits;
      Say(absl::StrFormat("and %s %.4f", setting.said, bits));
      if (bits >= least) continue;
      least = bits;
      config_ = *std::move(changed);
      std::erase_if(kept_, [&](const Setting* other) { return other->field == setting.field; });
      kept_.push_back(&setting);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ShareCurve>> MeasureCurves() {
    std::vector<ModelConfig> configs = {WithShares(config_, units_, width_)};
    for (const Unit& unit : units_) {
      configs.push_back(WithShares(config_, units_, width_, &unit, 1));
    }
    ASSIGN_OR_RETURN(const auto models, Load(std::move(configs)));
    std::vector<ShareCurve> curves(models.size());  // the first: without any bound
    for (size_t i = 0; i < models.size(); ++i) {
      for (const auto& [share, slots] : slots_) {
        ASSIGN_OR_RETURN(const double bits, meter_.Bits(*models[i], measured_, slots));
        curves[i][share] = i == 0 ? bits : bits - curves[0][share];
      }
      if (i > 0) Tell(units_[i - 1], curves[i]);
    }
    curves.erase(curves.begin());
    return curves;
  }

  // Makes heads the units, and returns shares of them that lose less than those of their layers.
  absl::StatusOr<std::vector<double>> SharesOfHeads(const std::vector<double>& of_layers,
                                                    double exact) {
    std::vector<double> shares;
    size_t layer = 0;
    for (const Unit& unit : heads_) {
      while (units_[layer].layer != unit.layer) ++layer;
      shares.push_back(of_layers[layer]);
    }
    units_ = heads_;
    report_["heads"] = Json::array();
    return ImproveShares(
        shares, exact,
        [this](const std::vector<double>& tried) {
          return Bits(WithShares(config_, units_, tried), measured_);
        },
        [this](const std::vector<double>& kept, double bits) {
          const Json entries = AsEntries(units_, kept);
          report_["heads"].push_back({{"shares", entries}, {"bits", bits}});
          Say(absl::StrFormat("with %s %.4f", entries.dump(), bits));
        });
  }

  void Tell(const Unit& unit, const ShareCurve& curve) {
    std::vector<std::string> parts;
    Json lost = Json::object();
    for (const auto& [share, bits] : curve) {
      const int64_t slots = slots_.at(share);
      parts.push_back(absl::StrFormat("%d slots: %.4f", slots, bits));
      lost[absl::StrCat(slots)] = bits;
    }
    report_["curves"].push_back({{"layer", unit.layer}, {"lost", lost}});
    Say(absl::StrCat("layer ", unit.layer, ": bits that are lost with ",
                     absl::StrJoin(parts, ", ")));
  }

  const std::string& folder_;
  const ShareOptions& options_;
  const std::function<void(const std::string&)>& say_;
  kernels::DeviceContext& context_;
  Meter meter_;
  ModelConfig as_it_was_, config_;  // config_ has equal shares until others are chosen
  std::vector<const Setting*> kept_;
  std::vector<Unit> units_, heads_;  // layers, and then heads if these have shares
  std::vector<Exam> exams_;
  Exams measured_, others_;
  int64_t longest_ = 0;
  std::map<double, int64_t> slots_;  // of the bounded layer, by share
  double width_ = 1;
  Json report_;
};

}  // namespace

absl::StatusOr<Json> MeasureShares(const std::string& folder, const ShareOptions& options,
                                   const std::function<void(const std::string& line)>& say) {
  if (options.write && IsGguf(folder)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--write: expected a folder with a config.json, got ", folder));
  }
  ASSIGN_OR_RETURN(const auto context,
                   kernels::DeviceContext::Make(kernels::Device::kCpu, options.threads));
  context->BindThread();
  return ShareMeasurement(folder, options, say, *context).Run();
}

}  // namespace ovq::model
