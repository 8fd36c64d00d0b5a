#include "clients/load/report_rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

void AddProblems(Rows& rows, const Level& level) {
  const RunResult& run = level.run;
  for (const auto& [code, error] : level.report.errors) {
    rows.emplace_back("failed", absl::StrCat(error.count, " x ", code, ": ", error.first_message));
  }
  if (run.delete_errors.count > 0) {
    rows.emplace_back("sessions not deleted", absl::StrCat(run.delete_errors.count, " x ",
                                                           run.delete_errors.first_message));
  }
  if (run.abandoned > 0) {
    rows.emplace_back("turns given up after a failure", absl::StrCat(run.abandoned));
  }
  if (run.unsent > 0) {
    rows.emplace_back("due but never sent",
                      absl::StrCat(run.unsent, " (the latencies know nothing of these)"));
  }
  if (level.report.cut_off > 0) {
    rows.emplace_back("cut off by the end", absl::StrCat(level.report.cut_off));
  }
  if (run.interrupted) rows.emplace_back("interrupted", "yes");
}

}  // namespace

std::string DescribeLoad(const Options& options, double load) {
  if (!options.trace.empty()) return absl::StrCat("trace ", options.trace);
  const std::string turns =
      options.turns > 1 ? absl::StrCat(", sessions of ", options.turns, " turns") : "";
  if (!options.rate) {
    return absl::StrFormat("closed loop, %.0f user%s%s", load, load == 1 ? "" : "s", turns);
  }
  const char* kind = kArrivalKinds[static_cast<size_t>(options.arrivals)];
  const std::string shape = options.arrivals == ArrivalKind::kGamma
                                ? absl::StrFormat(" (burstiness %g)", options.burstiness)
                                : "";
  return absl::StrFormat("%s arrivals%s, %g %s/s%s", kind, shape, load,
                         options.turns > 1 ? "conversations" : "requests", turns);
}

std::vector<std::pair<std::string, Summary>> LatencyRows(const Level& level) {
  const Report& r = level.report;
  std::vector<std::pair<std::string, Summary>> rows = {
      {"time to first token", r.ttft_ms},
      {"inter-token latency", r.inter_token_ms},
      {"time per output token", r.tpot_ms},
      {"end to end", r.e2e_ms},
      {"session creation", Summarize(level.run.create_ms)},
      {"server: queue", r.queue_ms},
      {"server: prefill", r.prefill_ms},
      {"server: decode", r.decode_ms},
      {"client: sent late by", r.send_delay_ms}};
  std::erase_if(rows, [](const auto& row) { return row.second.count == 0; });
  return rows;
}

Rows FactRows(const Level& level) {
  const Report& r = level.report;
  Rows rows = {{"duration", absl::StrFormat("%.2f s", r.duration_s)},
               {"requests completed, failed", absl::StrCat(r.completed, ", ", r.failed)}};
  AddProblems(rows, level);
  rows.emplace_back("tokens in, out", absl::StrCat(r.input_tokens, ", ", r.output_tokens));
  const auto add = [&](const char* name, double value) {
    rows.emplace_back(name, absl::StrFormat("%.2f", value));
  };
  add("requests a second", r.request_throughput);
  add("output tokens a second", r.output_throughput);
  add("tokens a second, in and out", r.total_throughput);
  if (r.good) {
    rows.emplace_back(
        "good requests a second",
        absl::StrFormat("%.2f (%.2f%% of requests)", r.goodput(), 100 * r.good_fraction()));
  }
  rows.emplace_back("most requests in flight", absl::StrCat(r.max_in_flight));
  rows.emplace_back("tokens in a message, mean, max",
                    absl::StrFormat("%.2f, %.0f", r.tokens_per_chunk.mean, r.tokens_per_chunk.max));
  rows.emplace_back("state bytes a session, mean, max",
                    absl::StrFormat("%.0f, %.0f", r.state_bytes.mean, r.state_bytes.max));
  add("client CPU, cores", level.client_cpu);
  return rows;
}

absl::Status WriteReports(const Result& result) {
  const OutputOptions& output = result.options.output;
  using Writer = std::pair<std::string, std::string (*)(const Result&)>;
  for (const auto& [file, make] : {Writer(output.json, JsonReport), Writer(output.csv, CsvReport),
                                   Writer(output.html, HtmlReport)}) {
    if (file.empty()) continue;
    if (absl::Status status = WriteFile(file, make(result)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ovq::load
