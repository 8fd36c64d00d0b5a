#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

constexpr char kColumns[] =
    "load,conversation,turn,start_s,sent_s,ttft_ms,tpot_ms,max_itl_ms,e2e_ms,input_tokens,"
    "output_tokens,messages,position,state_bytes,queue_ms,prefill_ms,decode_ms,outcome,message\n";

// Quotes a field that is not empty, with inner quotes doubled, and replaces its newlines by spaces.
std::string Quoted(absl::string_view text) {
  if (text.empty()) return "";
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}, {"\n", " "}}), "\"");
}

std::string Seconds(double value) { return absl::StrFormat("%.6f", value); }
std::string Milliseconds(double value) { return absl::StrFormat("%.4f", value); }

std::string Row(const Record& record, double load, Clock::time_point begin) {
  const Outcome& outcome = record.outcome;
  const ServerUsage& usage = outcome.usage;
  const Latencies latencies = ComputeLatencies(record);
  const auto& gaps = latencies.inter_token;
  const Cells cells = {absl::StrFormat("%g", load),
                       absl::StrCat(record.conversation),
                       absl::StrCat(record.turn),
                       Seconds(SecondsBetween(begin, record.start)),
                       Seconds(SecondsBetween(begin, outcome.sent)),
                       outcome.arrivals.empty() ? "" : Milliseconds(latencies.ttft),
                       latencies.tpot ? Milliseconds(*latencies.tpot) : "",
                       gaps.empty() ? "" : Milliseconds(*std::ranges::max_element(gaps)),
                       Milliseconds(latencies.e2e),
                       absl::StrCat(record.completed() ? usage.prompt_tokens : record.input_tokens),
                       absl::StrCat(outcome.tokens()),
                       absl::StrCat(outcome.arrivals.size()),
                       absl::StrCat(usage.position),
                       absl::StrCat(usage.state_bytes),
                       Milliseconds(usage.queue_s * 1e3),
                       Milliseconds(usage.prefill_s * 1e3),
                       Milliseconds(usage.decode_s * 1e3),
                       record.cut_off ? "CUT_OFF" : absl::StatusCodeToString(outcome.status.code()),
                       Quoted(outcome.status.message())};
  return absl::StrJoin(cells, ",") + "\n";
}

}  // namespace

std::string CsvReport(const Result& result) {
  std::string out = kColumns;
  for (const Level& level : result.levels) {
    if (level.run.records.empty()) continue;
    const Clock::time_point begin = FirstStart(level.run.records);
    for (const Record& record : level.run.records) out += Row(record, level.load, begin);
  }
  return out;
}

}  // namespace ovq::load
