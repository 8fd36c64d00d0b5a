#include "clients/load/workload.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

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

constexpr int64_t kDefaultRequests = 1000;
// A conversation has far fewer turns than this, so the random streams of different requests never
// overlap.
constexpr uint64_t kTurnStride = uint64_t{1} << 32;

uint64_t RequestStream(int64_t conversation, int64_t turn) {
  return static_cast<uint64_t>(conversation) * kTurnStride + static_cast<uint64_t>(turn);
}

std::vector<Conversation> GroupBySession(std::span<const TraceEntry> trace, double speed) {
  std::vector<Conversation> conversations;
  std::map<std::string, size_t> place;  // index of each session's conversation
  for (const TraceEntry& entry : trace) {
    const Turn turn{entry.input_tokens, entry.output_tokens, entry.at_s / speed};
    if (!entry.session.empty()) {
      const auto [found, first] = place.emplace(entry.session, conversations.size());
      if (!first) {
        conversations[found->second].turns.push_back(turn);
        continue;
      }
    }
    conversations.push_back({.index = static_cast<int64_t>(conversations.size()),
                             .session = !entry.session.empty(),
                             .turns = {turn}});
  }
  return conversations;
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

Workload::Workload(WorkloadOptions options) : options_(std::move(options)) {
  // The limit counts the trace's requests, not its conversations.
  const int64_t all = options_.trace.size();
  const int64_t n = std::min(all, options_.max_requests.value_or(all));
  traced_ = GroupBySession(std::span(options_.trace).first(n), options_.trace_speed);
  for (Conversation& conversation : traced_) conversation.index += options_.first_index;
}

std::optional<Conversation> Workload::Next() {
  if (!options_.trace.empty()) {
    if (next_ == static_cast<int64_t>(traced_.size())) return std::nullopt;
    return std::move(traced_[next_++]);
  }
  const int64_t left = options_.max_requests.value_or(kDefaultRequests) - requests_;
  const int64_t turns = std::min(options_.turns, left);
  if (turns <= 0) return std::nullopt;
  requests_ += turns;
  Conversation conversation{.index = options_.first_index + next_++, .session = options_.turns > 1};
  for (int64_t i = 0; i < turns; ++i) {
    Random random = RandomStream(options_.seed, ~RequestStream(conversation.index, i));
    Turn& turn = conversation.turns.emplace_back();
    turn.input_tokens = options_.input.Draw(random);
    turn.output_tokens = options_.output.Draw(random);
  }
  return conversation;
}

std::vector<uint32_t> PromptMaker::Make(int64_t conversation, int64_t turn, int64_t tokens) const {
  Random random = RandomStream(seed_, RequestStream(conversation, turn));
  // An id, or the place in the text where the prompt begins.
  std::uniform_int_distribution<size_t> draw(0, (text_.empty() ? vocab_size_ : text_.size()) - 1);
  std::vector<uint32_t> ids(static_cast<size_t>(tokens));
  if (text_.empty()) {
    for (uint32_t& id : ids) id = static_cast<uint32_t>(draw(random));
    return ids;
  }
  size_t at = draw(random);
  for (uint32_t& id : ids) id = text_[at++ % text_.size()];
  return ids;
}

uint64_t PromptMaker::SamplingSeed(int64_t conversation, int64_t turn) const {
  return RandomStream(seed_ ^ 0x5a3b1e, RequestStream(conversation, turn))();
}

}  // namespace ovq::load
