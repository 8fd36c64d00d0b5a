#include "clients/load/trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::load {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr double kMaxSeconds = 1e10;  // large enough for times since 1970
constexpr size_t kMaxTraceBytes = size_t{1} << 30;

absl::Status Wrong(const char* name, absl::string_view expected, const nlohmann::json& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, ", got ", got.dump()));
}

absl::Status SetTime(const nlohmann::json& line, TraceEntry& entry) {
  const bool seconds = line.contains("timestamp_s");
  if (seconds == line.contains("timestamp")) {
    return absl::InvalidArgumentError(
        "expected one of timestamp_s (seconds) and timestamp (milliseconds)");
  }
  const char* name = seconds ? "timestamp_s" : "timestamp";
  entry.at_s = line[name].is_number() ? line[name].get<double>() * (seconds ? 1 : 1e-3) : -1;
  if (entry.at_s >= 0 && entry.at_s <= kMaxSeconds) return absl::OkStatus();
  return Wrong(name, "a number from 0 on", line[name]);
}

absl::Status SetLength(const nlohmann::json& line, const char* name, int64_t& tokens) {
  if (!line.contains(name)) return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  // Reads a double: an integer beyond 64 bits signed must not wrap into the range.
  const double value = line[name].is_number_integer() ? line[name].get<double>() : 0;
  tokens = static_cast<int64_t>(std::min(value, kMaxTokens + 1.0));
  if (tokens >= 1 && tokens <= kMaxTokens) return absl::OkStatus();
  return Wrong(name, absl::StrCat("a whole number from 1 to ", kMaxTokens), line[name]);
}

absl::StatusOr<TraceEntry> ParseLine(absl::string_view text) {
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  TraceEntry entry;
  for (const absl::Status& status :
       {SetTime(line, entry), SetLength(line, "input_length", entry.input_tokens),
        SetLength(line, "output_length", entry.output_tokens)}) {
    if (!status.ok()) return status;
  }
  if (line.contains("session")) {
    if (line["session"].is_string()) entry.session = line["session"].get<std::string>();
    if (entry.session.empty()) return Wrong("session", "a text", line["session"]);
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text,
                                                   const std::string& file) {
  std::vector<TraceEntry> entries;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    absl::StatusOr<TraceEntry> entry = ParseLine(line);
    if (!entry.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", entry.status().message()));
    }
    entries.push_back(*std::move(entry));
  }
  if (entries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": expected at least one request"));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.at_s < b.at_s; });
  const double first = entries.front().at_s;
  for (TraceEntry& entry : entries) entry.at_s -= first;
  return entries;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileOrPipe(file, kMaxTraceBytes));
  return ParseTrace(text, file);
}

}  // namespace ovq::load
