#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

constexpr char kColumns[] =
    "load,conversation,turn,start_s,sent_s,ttft_ms,tpot_ms,max_itl_ms,e2e_ms,input_tokens,"
    "output_tokens,messages,position,state_bytes,queue_ms,prefill_ms,decode_ms,outcome,message\n";

// In quotes that double within; a row stays a line.
std::string Quoted(absl::string_view text) {
  if (text.empty()) return "";
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}, {"\n", " "}}), "\"");
}

std::string Milliseconds(bool known, double value) {
  return known ? absl::StrFormat("%.4f", value) : "";
}

std::string Row(const Record& record, double load, Clock::time_point begin) {
  const Outcome& outcome = record.outcome;
  const ServerUsage& usage = outcome.usage;
  const Latencies latencies = LatenciesOf(record);
  const auto& gaps = latencies.inter_token;
  const std::string code =
      record.cut_off ? "CUT_OFF" : absl::StatusCodeToString(outcome.status.code());
  std::string row =
      absl::StrFormat("%g,%d,%d,%.6f,%.6f", load, record.conversation, record.turn,
                      SecondsBetween(begin, record.start), SecondsBetween(begin, outcome.sent));
  absl::StrAppend(
      &row, ",", Milliseconds(!outcome.arrivals.empty(), latencies.ttft), ",",
      Milliseconds(latencies.tpot.has_value(), latencies.tpot.value_or(0)), ",",
      Milliseconds(!gaps.empty(), gaps.empty() ? 0 : *std::max_element(gaps.begin(), gaps.end())),
      ",", Milliseconds(true, latencies.e2e));
  absl::StrAppend(&row, ",", record.completed() ? usage.prompt_tokens : record.input_tokens, ",",
                  outcome.tokens(), ",", outcome.arrivals.size(), ",", usage.position, ",",
                  usage.state_bytes);
  absl::StrAppendFormat(&row, ",%.4f,%.4f,%.4f", usage.queue_s * 1e3, usage.prefill_s * 1e3,
                        usage.decode_s * 1e3);
  absl::StrAppend(&row, ",", code, ",", Quoted(outcome.status.message()), "\n");
  return row;
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
