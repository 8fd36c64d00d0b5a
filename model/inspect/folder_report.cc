#include "model/inspect/folder_report.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/problems.h"
#include "kernels/common/state_memory.h"
#include "model/chat_template/chat_format.h"
#include "model/json_attrs.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace ovq {
namespace {

constexpr size_t kMaxGenerationBytes = 1 << 20;

int64_t VocabSize(const ModelConfig& config) {
  return config.vocab_size > 0 ? config.vocab_size : kMaxVocab;
}

bool IsWhole(const ModelConfig& config) {
  return !config.layers.empty() && std::ranges::none_of(config.layers, &LayerSpec::is_wrong);
}

// One look at a folder.
class Inspection {
 public:
  explicit Inspection(const InspectOptions& options) : options_(options) {}
  FolderReport Run();

 private:
  std::string File(std::string_view name) const {
    return absl::StrCat(report_.folder, "/", std::string(name));
  }
  void Tell(const absl::Status& problems) { AddProblems(problems_, problems); }
  bool IsRead(const char* field) const;  // of config.json: it has no problem
  void InspectWeights();
  void InspectSessions();
  void InspectTokenizer();
  void InspectChatFormat();
  void InspectGeneration();
  void CheckIds(AttrReader& reader, const nlohmann::json& json, const char* field,
                const std::vector<int32_t>& in_config);

  const InspectOptions& options_;
  FolderReport report_;
  absl::Status config_status_, problems_;
};

void Inspection::InspectWeights() {
  Weights weights;
  Tell(Weights::Open(report_.folder, weights));
  for (const auto& [name, view] : weights.tensors()) {
    report_.weight_bytes += view.bytes();
    ++report_.tensor_types[DTypeName(view.dtype)];
  }
  report_.n_tensors = static_cast<int64_t>(weights.tensors().size());
  report_.parameters = weights.elements();
  Tell(LanguageModel::Check(report_.config, weights));
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

void Inspection::InspectSessions() {
  const ModelConfig& config = report_.config;
  report_.state_dtype = options_.state_dtype.value_or(
      config.weights_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  if (!IsWhole(config)) return;
  const StateLimits limits = {.max_slot_cap = kMaxSlotCap,
                              .max_unbounded_tokens = std::ranges::max(options_.positions)};
  const absl::StatusOr<StateLayout> layout =
      PlanStateLayout(config, report_.state_dtype, limits, Device::kCpu, kHostPageBytes);
  if (!layout.ok()) return Tell(InContext(File("config.json"), layout.status()));
  std::vector<int64_t> caps = options_.slot_caps;
  if (caps.empty() || !layout->has_slot_cap()) caps = {layout->default_slot_cap()};
  for (const int64_t cap : caps) {
    for (const int64_t position : options_.positions) {
      report_.sessions.push_back({.position = position,
                                  .slot_cap = cap,
                                  .live_slots = layout->LiveSlotsAt(position, cap),
                                  .state_bytes = layout->live_bytes_at(position, cap),
                                  .memory_bytes = layout->bytes_at(position, cap)});
    }
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
  const auto check = [&](const char* field, int32_t id) {
    if ((*tokenizer)->HasToken(id)) return;
    Tell(absl::InvalidArgumentError(absl::StrCat(File("config.json"), ": ", field,
                                                 ": expected an id of the tokenizer's ",
                                                 report_.tokenizer_size, " tokens, got ", id)));
  };
  if (config.bos_token_id) check("bos_token_id", *config.bos_token_id);
  for (const int32_t id : config.eos_token_ids) check("eos_token_id", id);
}

void Inspection::InspectChatFormat() {
  const absl::StatusOr<std::unique_ptr<ChatFormat>> format = ChatFormat::Load(report_.folder);
  if (!format.ok()) return Tell(format.status());
  if (*format != nullptr) report_.chat_template = (*format)->source();
}

bool Inspection::IsRead(const char* field) const {
  const std::string problem = absl::StrCat(File("config.json"), ": ", field, ": ");
  return !report_.config.canonical.empty() &&
         std::ranges::none_of(ProblemsOf(config_status_), [&](const absl::Status& status) {
           return absl::StartsWith(status.message(), problem);
         });
}

// The server goes by config.json alone, so what differs would be done differently elsewhere.
void Inspection::CheckIds(AttrReader& reader, const nlohmann::json& json, const char* field,
                          const std::vector<int32_t>& in_config) {
  const std::vector<int32_t> ids = TokenIds(json, field, VocabSize(report_.config), reader);
  if (ids.empty() || !IsRead(field) || std::ranges::is_permutation(ids, in_config)) return;
  reader.Fail(field,
              absl::StrCat("expected config.json's [", absl::StrJoin(in_config, ", "),
                           "], by which the server goes, got [", absl::StrJoin(ids, ", "), "]"));
}

void Inspection::InspectGeneration() {
  const std::string path = File("generation_config.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxGenerationBytes);
  if (!text.ok()) return Tell(text.status());
  const absl::StatusOr<nlohmann::json> json = ParseJsonObject(*text, path);
  if (!json.ok()) return Tell(json.status());
  const ModelConfig& config = report_.config;
  const Attrs none;
  AttrReader reader(none);
  CheckIds(reader, *json, "bos_token_id",
           config.bos_token_id ? std::vector{*config.bos_token_id} : std::vector<int32_t>());
  CheckIds(reader, *json, "eos_token_id", config.eos_token_ids);
  TokenIds(*json, "pad_token_id", VocabSize(config), reader);
  Tell(InContext(path, reader.status()));
}

FolderReport Inspection::Run() {
  report_.folder = options_.folder;
  while (report_.folder.size() > 1 && report_.folder.back() == '/') report_.folder.pop_back();
  std::error_code error;
  if (!std::filesystem::is_directory(report_.folder, error)) {
    report_.problems = {absl::StrCat(report_.folder, ": expected a folder")};
    return report_;
  }
  config_status_ = LoadConfig(report_.folder, report_.config);
  Tell(config_status_);
  InspectWeights();
  InspectSessions();
  InspectTokenizer();
  InspectChatFormat();
  InspectGeneration();
  const std::string prefix = File("");
  for (const absl::Status& problem : ProblemsOf(problems_)) {
    std::string message(problem.message());
    if (message.starts_with(prefix)) message.erase(0, prefix.size());
    report_.problems.push_back(std::move(message));
  }
  return std::move(report_);
}

}  // namespace

FolderReport InspectFolder(const InspectOptions& options) { return Inspection(options).Run(); }

}  // namespace ovq
