#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "kernels/common/state_memory.h"
#include "model/chat_template/chat_format.h"
#include "model/families/family.h"
#include "model/inspect/inspect.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace ovq::model {
namespace {

using Json = nlohmann::ordered_json;

bool IsWhole(const ModelConfig& config) {
  return !config.layers.empty() && std::ranges::none_of(config.layers, &LayerSpec::is_wrong);
}

// Runs of layers of one type.
Json LayerRuns(const std::vector<LayerSpec>& layers) {
  Json runs = Json::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i == 0 || layers[i].type != layers[i - 1].type) {
      runs.push_back({{"first", i}, {"last", i}, {"type", layers[i].type}});
    }
    runs.back()["last"] = i;
  }
  return runs;
}

// One inspection of a folder.
class Inspection {
 public:
  explicit Inspection(const InspectOptions& options) : options_(options), folder_(options.folder) {
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  }

  Json Run() {
    std::error_code error;
    if (!std::filesystem::exists(folder_, error)) {
      Json report = Report();
      report["problems"] = {absl::StrCat(folder_, ": expected a folder or a GGUF file")};
      report["verdict"] = "not served: it does not exist";
      return report;
    }
    Tell(LoadConfig(folder_, config_));
    Json report = Report();
    InspectWeights(report);
    InspectSessions(report);
    InspectTokenizer(report);
    const auto format = jinja::ChatFormat::Load(folder_);
    Tell(format.status());
    if (format.ok() && *format != nullptr) report["chat_template"] = (*format)->source();
    const std::string prefix = absl::StrCat(folder_, IsGguf(folder_) ? ": " : "/");
    for (const absl::Status& problem : SplitProblems(problems_)) {
      std::string message(problem.message());
      if (message.starts_with(prefix)) message.erase(0, prefix.size());
      report["problems"].push_back(std::move(message));
    }
    if (!report["problems"].empty()) report["verdict"] = "not served: it has problems";
    return report;
  }

 private:
  std::string File(const char* name) const {
    return IsGguf(folder_) ? folder_ : absl::StrCat(folder_, "/", name);
  }
  void Tell(const absl::Status& problems) { AddProblems(problems_, problems); }
  kernels::DType StateDType() const {
    return options_.state_dtype.value_or(config_.default_dtype());
  }

  // All fields, those of config.json filled in.
  Json Report() const {
    return {{"folder", folder_},
            {"family", config_.family ? Json(std::string(config_.family->model_type)) : Json()},
            {"layers", LayerRuns(config_.layers)},
            {"parameters", 0},
            {"active_parameters", 0},
            {"tensors", 0},
            {"weight_bytes", 0},
            {"memory", Json::array()},
            {"tensor_types", Json::object()},
            {"quantization", nullptr},
            {"skipped_tensors", 0},
            {"skipped_bytes", 0},
            {"dtype", kernels::DTypeName(config_.weights_dtype)},
            {"vocab_size", config_.vocab_size},
            {"tokenizer", nullptr},
            {"chat_template", nullptr},
            {"state_dtype", "f32"},
            {"sessions", Json::array()},
            {"verdict", ""},
            {"notes", Json::array()},
            {"problems", Json::array()}};
  }

  void InspectWeights(Json& report) {
    const auto bytes = [](const StoredTensors& tensors) {
      size_t sum = 0;
      for (const auto& [name, stored] : tensors) sum += stored.bytes.size();
      return sum;
    };
    Weights weights;
    Tell(Weights::Open(folder_, weights));
    Tell(LanguageModel::Check(config_, weights));
    if (config_.family != nullptr) {
      const StoredTensors skipped = weights.RemoveUnused(config_.family->is_unused);
      report["skipped_tensors"] = skipped.size();
      report["skipped_bytes"] = bytes(skipped);
    }
    std::map<std::string, int64_t> types;
    for (const auto& [name, stored] : weights.tensors()) ++types[stored.dtype];
    report["parameters"] = weights.elements();
    // Where tensors are missing there are fewer than the config's experts would have.
    const kernels::WeightCount count = InspectMemory(report);
    report["active_parameters"] =
        weights.elements() -
        std::min(weights.elements(), static_cast<int64_t>(count.idle_parameters));
    report["tensors"] = weights.tensors().size();
    report["weight_bytes"] = bytes(weights.tensors());
    report["tensor_types"] = types;
    const auto is_quantized = [&](const std::string& part) {
      const auto stored = weights.tensors().find(part);
      return stored != weights.tensors().end() && !FloatDType(stored->second.dtype);
    };
    const auto n_widened = std::ranges::count_if(weights.made(), [&](const auto& made) {
      return std::ranges::any_of(made.second.parts, is_quantized);
    });
    if (n_widened > 0) {
      const RoundingLoss loss = MeasureLoss(weights);
      const bool is_gguf = config_.quantization.method == QuantizationMethod::kNone;
      report["quantization"] = {
          {"method", is_gguf ? "gguf" : QuantizationName(config_.quantization.method)},
          {"matrices", n_widened},
          {"bf16_error", loss.bf16},
          {"int8_error", loss.int8}};
    }
    if (IsWhole(config_)) return;
    std::vector<size_t> wrong;
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      if (config_.layers[i].is_wrong) wrong.push_back(i);
    }
    const bool all = wrong.size() == config_.layers.size();
    report["notes"].push_back(absl::StrCat(
        "not checked before config.json is right: ",
        all ? "tensors" : absl::StrCat("tensors of layers ", absl::StrJoin(wrong, ", ")),
        ", tensors that nobody uses, states"));
  }

  // The bytes of the weights as a server of each --weights would hold them.
  kernels::WeightCount InspectMemory(Json& report) const {
    kernels::WeightCount count;
    if (!IsWhole(config_)) return count;
    for (const auto& [name, type] : {std::pair("checkpoint", kernels::WeightType::kAsComputed),
                                     std::pair("int8", kernels::WeightType::kInt8)}) {
      count = LanguageModel::CountWeights(config_, {config_.default_dtype(), type});
      report["memory"].push_back({{"weights", name},
                                  {"bytes", count.bytes},
                                  {"active_bytes", static_cast<size_t>(count.ReadBy(1))},
                                  {"embedding_bytes", config_.embedding_bytes()}});
    }
    return count;
  }

  absl::StatusOr<StateLayout> PlanLayout(const ModelConfig& config) const {
    const StateLimits limits = {.max_slot_cap = kernels::kMaxSlotCap,
                                .max_unbounded_tokens = std::ranges::max(options_.positions)};
    return PlanStateLayout(config, StateDType(), limits, kernels::Device::kCpu,
                           kernels::kHostPageBytes);
  }

  // live_slots is 0 without layers that have a slot cap; state_bytes are live bytes, as in a
  // snapshot; memory_bytes are whole pages of host memory.
  void AddSessions(const char* policy, const StateLayout& layout, std::vector<int64_t> caps,
                   Json& report) const {
    if (caps.empty() || !layout.has_slot_cap()) caps = {layout.default_slot_cap()};
    for (const int64_t cap : caps) {
      for (const int64_t position : options_.positions) {
        report["sessions"].push_back({{"memory", policy},
                                      {"position", position},
                                      {"slot_cap", cap},
                                      {"live_slots", layout.LiveSlotsAt(position, cap)},
                                      {"state_bytes", layout.live_bytes_at(position, cap)},
                                      {"memory_bytes", layout.bytes_at(position, cap)}});
      }
    }
  }

  // Says which part of a slot's score ovq.variance adds under this policy.
  void NoteVariance(const CachePolicy& policy, const ModelConfig& config, Json& report) const {
    const float variance = KeyVariance(config);
    if (variance == 0) return;
    const std::string by =
        policy.layer_type.empty() ? "" : absl::StrCat(" of --memory ", policy.name);
    report["notes"].push_back(absl::StrCat("ovq.variance: scores of slots", by, " gain ", variance,
                                           " times what the variance of their keys gives"));
  }

  void InspectSessions(Json& report) {
    report["state_dtype"] = absl::AsciiStrToLower(kernels::DTypeName(StateDType()));
    if (!IsWhole(config_)) return;
    const absl::StatusOr<StateLayout> layout = PlanLayout(config_);
    if (!layout.ok()) return Tell(InContext(File("config.json"), layout.status()));
    AddSessions(CachePolicies().front().name, *layout, options_.slot_caps, report);
    NoteVariance(CachePolicies().front(), config_, report);
    report["verdict"] = "served, in bounded memory as config.json says";
    if (!layout->has_unbounded()) return;
    report["verdict"] = "served exactly, in memory that grows with a session; nothing bounds it";
    std::vector<int64_t> caps = options_.slot_caps;
    if (caps.empty()) caps = {2048, 8192, 32768};
    for (const CachePolicy& policy : CachePolicies()) {
      if (!policy.is_exact_at_first) continue;
      const absl::StatusOr<ModelConfig> through = LoadConfig(folder_, policy);
      if (!through.ok()) continue;
      const absl::StatusOr<StateLayout> bounded = PlanLayout(*through);
      if (!bounded.ok() || bounded->has_unbounded()) continue;
      AddSessions(policy.name, *bounded, caps, report);
      NoteVariance(policy, *through, report);
      report["verdict"] = absl::StrCat(
          "served exactly, in memory that grows with a session; bounded with --memory ",
          policy.name, ", exact up to as many tokens as slot_cap");
      return;
    }
  }

  void InspectTokenizer(Json& report) {
    ModelConfig config = config_;
    if (config.vocab_size == 0) config.vocab_size = kMaxVocab;
    const absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(folder_, config);
    if (!loaded.ok()) return Tell(loaded.status());
    const Tokenizer& tokenizer = **loaded;
    if (tokenizer.size() > 0) {
      Json specials = Json::object();
      for (const auto& [id, text] : tokenizer.special_tokens()) specials[absl::StrCat(id)] = text;
      report["tokenizer"] = {{"kind", TokenizerName(tokenizer.kind())},
                             {"size", tokenizer.size()},
                             {"special_tokens", specials}};
    }
    for (const std::string& note : tokenizer.notes()) {
      report["notes"].push_back("tokenizer: " + note);
    }
    const auto check = [&](const char* file, const char* field, int32_t id) {
      if (tokenizer.HasToken(id)) return;
      Tell(absl::InvalidArgumentError(absl::StrCat(File(file), ": ", field,
                                                   ": expected an id of the tokenizer's ",
                                                   tokenizer.size(), " tokens, got ", id)));
    };
    if (config.bos_token_id) check("config.json", "bos_token_id", *config.bos_token_id);
    for (const int32_t id : config.eos_token_ids) {
      check("config.json or generation_config.json", "eos_token_id", id);
    }
  }

  const InspectOptions& options_;
  std::string folder_;
  ModelConfig config_;  // as far as it could be read
  absl::Status problems_;
};

}  // namespace

Json InspectFolder(const InspectOptions& options) { return Inspection(options).Run(); }

}  // namespace ovq::model
