#include "model/inspect/folder_report.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "kernels/common/state_memory.h"
#include "model/cache_policy.h"
#include "model/chat_template/chat_format.h"
#include "model/families/family.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace ovq::model {
namespace {

int64_t VocabSize(const ModelConfig& config) {
  return config.vocab_size > 0 ? config.vocab_size : kMaxVocab;
}

bool IsWhole(const ModelConfig& config) {
  return !config.layers.empty() && std::ranges::none_of(config.layers, &LayerSpec::is_wrong);
}

// One inspection of a folder.
class Inspection {
 public:
  explicit Inspection(const InspectOptions& options) : options_(options) {}
  FolderReport Run();

 private:
  std::string File(std::string_view name) const {
    return absl::StrCat(report_.folder, "/", std::string(name));
  }
  void Tell(const absl::Status& problems) { AddProblems(problems_, problems); }
  void InspectWeights();
  absl::StatusOr<StateLayout> PlanLayout(const ModelConfig& config) const;
  void AddSessions(const CachePolicy& policy, const StateLayout& layout, std::vector<int64_t> caps);
  void InspectSessions();
  void InspectTokenizer();
  void InspectChatFormat();

  const InspectOptions& options_;
  FolderReport report_;
  absl::Status config_status_, problems_;
};

void Inspection::InspectWeights() {
  Weights weights;
  Tell(Weights::Open(report_.folder, weights));
  Tell(LanguageModel::Check(report_.config, weights));
  if (report_.config.family != nullptr) {
    const kernels::TensorMap skipped = weights.RemoveUnused(report_.config.family->is_unused);
    report_.n_skipped = static_cast<int64_t>(skipped.size());
    for (const auto& [name, view] : skipped) report_.skipped_bytes += view.bytes();
  }
  for (const auto& [name, view] : weights.tensors()) {
    report_.weight_bytes += view.bytes();
    ++report_.tensor_types[kernels::DTypeName(view.dtype)];
  }
  report_.n_tensors = static_cast<int64_t>(weights.tensors().size());
  report_.parameters = weights.elements();
  if (IsWhole(report_.config)) return;
  std::vector<size_t> wrong;
  for (size_t i = 0; i < report_.config.layers.size(); ++i) {
    if (report_.config.layers[i].is_wrong) wrong.push_back(i);
  }
  const bool all = wrong.size() == report_.config.layers.size();
  report_.notes.push_back(
      absl::StrCat("not checked before config.json is right: ",
                   all ? "tensors" : absl::StrCat("tensors of layers ", absl::StrJoin(wrong, ", ")),
                   ", tensors that nobody uses, states"));
}

absl::StatusOr<StateLayout> Inspection::PlanLayout(const ModelConfig& config) const {
  const StateLimits limits = {.max_slot_cap = kernels::kMaxSlotCap,
                              .max_unbounded_tokens = std::ranges::max(options_.positions)};
  return PlanStateLayout(config, report_.state_dtype, limits, kernels::Device::kCpu,
                         kernels::kHostPageBytes);
}

void Inspection::AddSessions(const CachePolicy& policy, const StateLayout& layout,
                             std::vector<int64_t> caps) {
  if (caps.empty() || !layout.has_slot_cap()) caps = {layout.default_slot_cap()};
  for (const int64_t cap : caps) {
    for (const int64_t position : options_.positions) {
      report_.sessions.push_back({.cache_policy = policy,
                                  .position = position,
                                  .slot_cap = cap,
                                  .live_slots = layout.LiveSlotsAt(position, cap),
                                  .state_bytes = layout.live_bytes_at(position, cap),
                                  .memory_bytes = layout.bytes_at(position, cap)});
    }
  }
}

void Inspection::InspectSessions() {
  const ModelConfig& config = report_.config;
  report_.state_dtype = options_.state_dtype.value_or(
      config.weights_dtype == kernels::DType::kBF16 ? kernels::DType::kBF16 : kernels::DType::kF32);
  if (!IsWhole(config)) return;
  const absl::StatusOr<StateLayout> layout = PlanLayout(config);
  if (!layout.ok()) return Tell(InContext(File("config.json"), layout.status()));
  AddSessions(CachePolicies().front(), *layout, options_.slot_caps);
  report_.verdict = "served, in bounded memory as config.json says";
  if (!layout->has_unbounded()) return;
  report_.verdict = "served exactly, in memory that grows with a session; nothing bounds it";
  for (const CachePolicy& policy : CachePolicies()) {
    if (!policy.is_exact_at_first) continue;
    const absl::StatusOr<ModelConfig> through = LoadConfig(report_.folder, policy);
    if (!through.ok()) continue;
    const absl::StatusOr<StateLayout> bounded = PlanLayout(*through);
    if (!bounded.ok() || bounded->has_unbounded()) continue;
    AddSessions(
        policy, *bounded,
        options_.slot_caps.empty() ? std::vector<int64_t>{2048, 8192, 32768} : options_.slot_caps);
    report_.verdict =
        absl::StrCat("served exactly, in memory that grows with a session; bounded with --memory ",
                     policy.name, ", exact up to as many tokens as slot_cap");
    return;
  }
}

void Inspection::InspectTokenizer() {
  ModelConfig config = report_.config;
  config.vocab_size = VocabSize(config);
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(report_.folder, config);
  if (!tokenizer.ok()) return Tell(tokenizer.status());
  report_.tokenizer_size = (*tokenizer)->size();
  report_.special_tokens = (*tokenizer)->special_tokens();
  for (const std::string& note : (*tokenizer)->notes())
    report_.notes.push_back("tokenizer: " + note);
  const auto check = [&](const char* file, const char* field, int32_t id) {
    if ((*tokenizer)->HasToken(id)) return;
    Tell(absl::InvalidArgumentError(absl::StrCat(File(file), ": ", field,
                                                 ": expected an id of the tokenizer's ",
                                                 report_.tokenizer_size, " tokens, got ", id)));
  };
  if (config.bos_token_id) check("config.json", "bos_token_id", *config.bos_token_id);
  for (const int32_t id : config.eos_token_ids) {
    check("config.json or generation_config.json", "eos_token_id", id);
  }
}

void Inspection::InspectChatFormat() {
  const absl::StatusOr<std::unique_ptr<jinja::ChatFormat>> format =
      jinja::ChatFormat::Load(report_.folder);
  if (!format.ok()) return Tell(format.status());
  if (*format != nullptr) report_.chat_template = (*format)->source();
}

FolderReport Inspection::Run() {
  report_.folder = options_.folder;
  while (report_.folder.size() > 1 && report_.folder.back() == '/') report_.folder.pop_back();
  std::error_code error;
  if (!std::filesystem::is_directory(report_.folder, error)) {
    report_.problems = {absl::StrCat(report_.folder, ": expected a folder")};
    report_.verdict = "not served: it is no folder";
    return report_;
  }
  config_status_ = LoadConfig(report_.folder, report_.config);
  Tell(config_status_);
  InspectWeights();
  InspectSessions();
  InspectTokenizer();
  InspectChatFormat();
  const std::string prefix = File("");
  for (const absl::Status& problem : SplitProblems(problems_)) {
    std::string message(problem.message());
    if (message.starts_with(prefix)) message.erase(0, prefix.size());
    report_.problems.push_back(std::move(message));
  }
  if (!report_.problems.empty()) report_.verdict = "not served: it has problems";
  return std::move(report_);
}

}  // namespace

FolderReport InspectFolder(const InspectOptions& options) { return Inspection(options).Run(); }

}  // namespace ovq::model
