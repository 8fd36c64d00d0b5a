#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/load/report.h"
#include "clients/load/report_rows.h"

namespace ovq::load {
namespace {

void Line(std::string& out, const std::string& name, const std::string& value) {
  absl::StrAppendFormat(&out, "%-34s %s\n", name, value);
}

void LatencyTable(std::string& out, const Level& level) {
  absl::StrAppendFormat(&out, "%-22s %9s %9s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50",
                        "p90", "p95", "p99", "max", "std");
  for (const auto& [name, s] : LatencyRows(level)) {
    absl::StrAppendFormat(&out, "%-22s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, s.mean,
                          s.p50, s.p90, s.p95, s.p99, s.max, s.std);
  }
}

}  // namespace

std::string SweepHeader(const Options& options) {
  return absl::StrFormat("%10s %6s %6s %9s %10s %9s %9s %9s %9s %8s\n",
                         options.rate ? "rate" : "users", "done", "failed", "req/s", "tokens/s",
                         "TTFT p50", "TTFT p99", "ITL p50", "E2E p99", "good %");
}

std::string SweepLine(const Level& level) {
  const Report& r = level.report;
  const std::string good =
      r.good ? absl::StrFormat("%.2f", 100 * r.good_fraction()) : std::string("-");
  std::string line =
      absl::StrFormat("%10g %6d %6d %9.2f %10.2f %9.2f %9.2f %9.2f %9.2f %8s", level.load,
                      r.completed, r.failed, r.request_throughput, r.output_throughput,
                      r.ttft_ms.p50, r.ttft_ms.p99, r.inter_token_ms.p50, r.e2e_ms.p99, good);
  const char* verdict = Sweep::Name(level.verdict);
  if (*verdict != '\0') absl::StrAppend(&line, "  ", verdict);
  return line + "\n";
}

std::string TextReport(const Result& result) {
  std::string out;
  Line(out, "model", absl::StrCat(result.model.name, " on ", result.model.device));
  Line(out, "server",
       absl::StrCat(result.options.connect.server, " (version ", result.model.server_version, ")"));
  if (result.options.sweep.on) {
    absl::StrAppend(&out, "\n", SweepHeader(result.options));
    for (const Level& level : result.levels) absl::StrAppend(&out, SweepLine(level));
    absl::StrAppend(&out, "\n",
                    result.best ? "The best level:\n"
                                : "No level kept the bounds of --goodput. The last level:\n");
  }
  const Level& level = result.main_level();
  Line(out, "load", DescribeLoad(result.options, level.load));
  for (const auto& [name, value] : FactRows(level)) Line(out, name, value);
  out += '\n';
  LatencyTable(out, level);
  return out;
}

}  // namespace ovq::load
