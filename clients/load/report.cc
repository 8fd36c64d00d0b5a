#include "clients/load/report.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::load {
namespace {

std::string Fixed(double value) { return absl::StrFormat("%.2f", value); }

void AddProblems(std::vector<Cells>& rows, const Level& level) {
  const RunResult& run = level.run;
  for (const auto& [code, error] : level.report.errors) {
    rows.push_back({"failed", absl::StrCat(error.count, " x ", code, ": ", error.first_message)});
  }
  const auto add = [&](const char* name, int64_t count, absl::string_view more = "") {
    if (count > 0) rows.push_back({name, absl::StrCat(count, more)});
  };
  add("sessions not deleted", run.delete_errors.count,
      absl::StrCat(" x ", run.delete_errors.first_message));
  add("turns given up after a failure", run.abandoned);
  add("begun again", run.outlasted, " when a server was back; latencies count from then on");
  add("due but never sent", run.unsent, " (the latencies know nothing of these)");
  add("cut off by the end", level.report.cut_off);
  if (run.interrupted) rows.push_back({"interrupted", "yes"});
}

// Joins the cells of a sweep's table, right-aligned.
std::string SweepText(const Cells& cells) {
  constexpr std::array<int, 10> kWidths = {10, 6, 6, 9, 10, 9, 9, 9, 9, 8};
  std::string line;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    absl::StrAppendFormat(&line, "%s%*s", i == 0 ? "" : " ", kWidths[i], cells[i]);
  }
  if (!cells.back().empty()) absl::StrAppend(&line, "  ", cells.back());
  return line + "\n";
}

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

std::string DescribeLoad(const Options& options, double load) {
  if (!options.trace.empty()) return absl::StrCat("trace ", options.trace);
  const int64_t n = options.work.turns;
  const std::string turns = n > 1 ? absl::StrCat(", sessions of ", n, " turns") : "";
  if (!options.rate) {
    return absl::StrFormat("closed loop, %.0f user%s%s", load, load == 1 ? "" : "s", turns);
  }
  const ArrivalOptions& arrivals = options.plan.arrivals;
  const std::string shape = arrivals.kind == ArrivalKind::kGamma
                                ? absl::StrFormat(" (burstiness %g)", arrivals.burstiness)
                                : "";
  return absl::StrFormat("%s arrivals%s, %g %s/s%s",
                         kArrivalKinds[static_cast<size_t>(arrivals.kind)], shape, load,
                         n > 1 ? "conversations" : "requests", turns);
}

Cells SweepCells(const Level& level) {
  const Report& r = level.report;
  Cells cells = {absl::StrFormat("%g", level.load), absl::StrCat(r.completed),
                 absl::StrCat(r.failed)};
  for (const double value : {r.request_throughput, r.output_throughput, r.ttft_ms.p50,
                             r.ttft_ms.p99, r.inter_token_ms.p50, r.e2e_ms.p99}) {
    cells.push_back(Fixed(value));
  }
  cells.push_back(r.good ? Fixed(100 * r.good_fraction()) : "-");
  cells.push_back(level.verdict);
  return cells;
}

std::vector<Cells> SetupRows(const Result& result) {
  std::vector<Cells> rows = {{"command line", result.command_line}, {"host", result.host}};
  for (const Setting& setting : result.options.settings) {
    if (setting.origin != kDefaultOrigin) rows.push_back({setting.name, setting.value});
  }
  return rows;
}

std::vector<Cells> LatencyTable(const Level& level) {
  const Report& r = level.report;
  std::vector<Cells> rows = {{"milliseconds", "mean", "p50", "p90", "p95", "p99", "max", "std"}};
  for (const auto& [name, s] : {std::pair("time to first token", &r.ttft_ms),
                                {"inter-token latency", &r.inter_token_ms},
                                {"time per output token", &r.tpot_ms},
                                {"end to end", &r.e2e_ms},
                                {"session creation", &r.create_ms},
                                {"server: queue", &r.queue_ms},
                                {"server: prefill", &r.prefill_ms},
                                {"server: decode", &r.decode_ms},
                                {"client: sent late by", &r.send_delay_ms}}) {
    if (s->samples.empty()) continue;
    rows.push_back({name, Fixed(s->mean), Fixed(s->p50), Fixed(s->p90), Fixed(s->p95),
                    Fixed(s->p99), Fixed(s->max), Fixed(s->std)});
  }
  return rows;
}

std::vector<Cells> FactRows(const Level& level) {
  const Report& r = level.report;
  std::vector<Cells> rows = {
      {"duration", absl::StrCat(Fixed(r.duration_s), " s")},
      {"requests completed, failed", absl::StrCat(r.completed, ", ", r.failed)}};
  AddProblems(rows, level);
  rows.push_back({"tokens in, out", absl::StrCat(r.input_tokens, ", ", r.output_tokens)});
  rows.push_back({"requests a second", Fixed(r.request_throughput)});
  rows.push_back({"output tokens a second", Fixed(r.output_throughput)});
  rows.push_back({"tokens a second, in and out", Fixed(r.total_throughput)});
  if (r.good) {
    rows.push_back(
        {"good requests a second",
         absl::StrFormat("%.2f (%.2f%% of requests)", r.goodput(), 100 * r.good_fraction())});
  }
  rows.push_back({"most requests in flight", absl::StrCat(r.max_in_flight)});
  rows.push_back({"tokens in a message, mean, max",
                  absl::StrFormat("%.2f, %.0f", r.tokens_per_chunk.mean, r.tokens_per_chunk.max)});
  rows.push_back({"state bytes a session, mean, max",
                  absl::StrFormat("%.0f, %.0f", r.state_bytes.mean, r.state_bytes.max)});
  rows.push_back({"client CPU, cores", Fixed(level.client_cpu)});
  return rows;
}

std::string SweepHeader(const Options& options) {
  return SweepText({options.rate ? "rate" : "users", "done", "failed", "req/s", "tokens/s",
                    "TTFT p50", "TTFT p99", "ITL p50", "E2E p99", "good %", ""});
}

std::string SweepLine(const Level& level) { return SweepText(SweepCells(level)); }

std::string TextReport(const Result& result) {
  std::string out;
  const auto line = [&](const std::string& name, const std::string& value) {
    absl::StrAppendFormat(&out, "%-34s %s\n", name, value);
  };
  line("model", absl::StrCat(result.model.name, " on ", result.model.device));
  line("server",
       absl::StrCat(result.options.connect.server, " (version ", result.model.server_version, ")"));
  if (result.options.sweep.on) {
    absl::StrAppend(&out, "\n", SweepHeader(result.options));
    for (const Level& level : result.levels) absl::StrAppend(&out, SweepLine(level));
    absl::StrAppend(&out, "\n",
                    result.best
                        ? "The best level:\n"
                        : "No level lasted --sweep-time and kept the bounds of --goodput. The last "
                          "level:\n");
  }
  const Level& level = result.main_level();
  line("load", DescribeLoad(result.options, level.load));
  for (const Cells& row : FactRows(level)) line(row[0], row[1]);
  for (const Cells& row : LatencyTable(level)) {
    absl::StrAppendFormat(&out, "\n%-22s", row[0]);
    for (size_t i = 1; i < row.size(); ++i) absl::StrAppendFormat(&out, " %9s", row[i]);
  }
  return out + "\n";
}

std::string CsvReport(const Result& result) {
  std::string out = kColumns;
  for (const Level& level : result.levels) {
    if (level.run.records.empty()) continue;
    const Clock::time_point begin = FirstStart(level.run.records);
    for (const Record& record : level.run.records) out += Row(record, level.load, begin);
  }
  return out;
}

absl::Status CheckReportFiles(const OutputOptions& output) {
  for (const auto& [flag, file] : {std::pair("--output-json: ", &output.json),
                                   {"--output-csv: ", &output.csv},
                                   {"--output-html: ", &output.html}}) {
    if (file->empty()) continue;
    const absl::Status status = CheckWritable(*file);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(flag, status.message()));
  }
  return absl::OkStatus();
}

absl::Status WriteReports(const Result& result) {
  const OutputOptions& output = result.options.output;
  for (const auto& [file, make] : {std::pair(output.json, &JsonReport),
                                   {output.csv, &CsvReport},
                                   {output.html, &HtmlReport}}) {
    if (file.empty()) continue;
    RETURN_IF_ERROR(WriteFile(file, make(result)));
  }
  return absl::OkStatus();
}

}  // namespace ovq::load
