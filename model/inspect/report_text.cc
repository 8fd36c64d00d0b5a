#include "model/inspect/report_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/text.h"
#include "model/cache_policy.h"
#include "model/families/family.h"

namespace ovq::model {
namespace {

using Json = nlohmann::ordered_json;

// Layers [first, last] of one type.
struct LayerRun {
  size_t first, last;
  std::string type;
};

std::vector<LayerRun> FindLayerRuns(const std::vector<LayerSpec>& layers) {
  std::vector<LayerRun> runs;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (runs.empty() || runs.back().type != layers[i].type) runs.push_back({i, i, layers[i].type});
    runs.back().last = i;
  }
  return runs;
}

std::string FamilyName(const FolderReport& report) {
  return report.config.family ? std::string(report.config.family->model_type) : "unknown";
}

std::string StateTypeName(kernels::DType dtype) {
  return absl::AsciiStrToLower(kernels::DTypeName(dtype));
}

std::string TokenizerText(const FolderReport& report) {
  if (report.tokenizer_size == 0) return "none";
  std::string text = absl::StrFormat("%s, %d tokens", TokenizerName(report.config.tokenizer),
                                     report.tokenizer_size);
  const char* before = "; special: ";
  for (const auto& [id, token] : report.special_tokens) {
    absl::StrAppend(&text, before, id);
    if (!token.empty()) absl::StrAppend(&text, " ", Quoted(token));
    before = ", ";
  }
  return text;
}

void AppendSessions(const FolderReport& report, std::string& text) {
  if (report.sessions.empty()) return;
  absl::StrAppendFormat(&text, "states in %s\n%16s %12s %9s %11s %16s %16s\n",
                        StateTypeName(report.state_dtype), "memory", "position", "slot_cap",
                        "live_slots", "state_bytes", "memory_bytes");
  for (const FolderReport::Session& s : report.sessions) {
    absl::StrAppendFormat(&text, "%16s %12d %9d %11d %16d %16d\n", s.cache_policy.name, s.position,
                          s.slot_cap, s.live_slots, s.state_bytes, s.memory_bytes);
  }
}

// The text on one line, whatever a name in a file holds.
std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

std::string ReportText(const FolderReport& report) {
  const ModelConfig& config = report.config;
  std::string text =
      absl::StrFormat("model       %s\nfamily      %s\nlayers      %d\n", OneLine(report.folder),
                      FamilyName(report), config.layers.size());
  for (const LayerRun& run : FindLayerRuns(config.layers)) {
    const std::string range =
        run.first == run.last ? absl::StrCat(run.first) : absl::StrCat(run.first, "-", run.last);
    absl::StrAppendFormat(&text, "  %-10s%s\n", range, OneLine(run.type));
  }
  std::vector<std::string> types;
  for (const auto& [type, count] : report.tensor_types) {
    types.push_back(absl::StrCat(count, " ", type));
  }
  absl::StrAppendFormat(&text, "parameters  %d\nweights     %d bytes in %d tensors: %s\n",
                        report.parameters, report.weight_bytes, report.n_tensors,
                        types.empty() ? "none" : absl::StrJoin(types, ", "));
  if (report.n_skipped > 0) {
    absl::StrAppendFormat(&text, "skipped     %d bytes in %d tensors\n", report.skipped_bytes,
                          report.n_skipped);
  }
  absl::StrAppendFormat(&text, "dtype       %s\ntokenizer   %s\nchat        %s\n",
                        kernels::DTypeName(config.weights_dtype), OneLine(TokenizerText(report)),
                        report.chat_template.empty() ? "no template" : report.chat_template);
  AppendSessions(report, text);
  for (const std::string& note : report.notes)
    absl::StrAppend(&text, "note: ", OneLine(note), "\n");
  absl::StrAppend(&text, "verdict     ", report.verdict, "\n");
  const size_t n = report.problems.size();
  absl::StrAppend(
      &text, n == 0 ? "no problems" : absl::StrCat(n, n == 1 ? " problem:" : " problems:"), "\n");
  for (const std::string& problem : report.problems) absl::StrAppend(&text, OneLine(problem), "\n");
  return text;
}

std::string ReportJson(const FolderReport& report) {
  const ModelConfig& config = report.config;
  Json json = {
      {"folder", report.folder},
      {"family", config.family ? Json(FamilyName(report)) : Json()},
      {"layers", Json::array()},
      {"parameters", report.parameters},
      {"tensors", report.n_tensors},
      {"weight_bytes", report.weight_bytes},
      {"tensor_types", report.tensor_types},
      {"skipped_tensors", report.n_skipped},
      {"skipped_bytes", report.skipped_bytes},
      {"dtype", kernels::DTypeName(config.weights_dtype)},
      {"vocab_size", config.vocab_size},
      {"tokenizer", nullptr},
      {"chat_template", report.chat_template.empty() ? Json() : Json(report.chat_template)},
      {"state_dtype", StateTypeName(report.state_dtype)},
      {"sessions", Json::array()},
      {"verdict", report.verdict},
      {"notes", report.notes},
      {"problems", report.problems}};
  for (const LayerRun& run : FindLayerRuns(config.layers)) {
    json["layers"].push_back({{"first", run.first}, {"last", run.last}, {"type", run.type}});
  }
  for (const FolderReport::Session& s : report.sessions) {
    json["sessions"].push_back({{"memory", s.cache_policy.name},
                                {"position", s.position},
                                {"slot_cap", s.slot_cap},
                                {"live_slots", s.live_slots},
                                {"state_bytes", s.state_bytes},
                                {"memory_bytes", s.memory_bytes}});
  }
  if (report.tokenizer_size > 0) {
    Json specials = Json::object();
    for (const auto& [id, token] : report.special_tokens) specials[absl::StrCat(id)] = token;
    json["tokenizer"] = {{"kind", TokenizerName(config.tokenizer)},
                         {"size", report.tokenizer_size},
                         {"special_tokens", specials}};
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ovq::model
