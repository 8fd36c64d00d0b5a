#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/load/report.h"
#include "clients/load/report_rows.h"
#include "clients/load/svg_plot.h"

namespace ovq::load {
namespace {

constexpr int kTimelineBins = 60;
constexpr size_t kCurvePoints = 300;

// Colours that stay apart in print and for most colour-blind readers (Okabe and Ito), lighter on
// dark pages.
constexpr char kStyle[] = R"(<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --soft: #5b6470;
  --line: #dfe3e8; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a0568c; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --text: #e6e9ed; --soft: #9aa4b0;
  --line: #30363d; --c0: #56b4e9; --c1: #f0883e; --c2: #3fc79a; --c3: #d69bc4; } }
body { background: var(--page); color: var(--text); margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem; font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p { color: var(--soft); margin: .2rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 600; }
.wide { overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
svg.plot { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; }
svg .title { font-weight: 600; fill: var(--text); } svg .axis { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; }
svg line.s0, svg polyline.s0 { stroke: var(--c0); } svg circle.s0 { fill: var(--c0); }
svg line.s1, svg polyline.s1 { stroke: var(--c1); } svg circle.s1 { fill: var(--c1); }
svg line.s2, svg polyline.s2 { stroke: var(--c2); } svg circle.s2 { fill: var(--c2); }
svg line.s3, svg polyline.s3 { stroke: var(--c3); } svg circle.s3 { fill: var(--c3); }
</style>
)";

// The samples of every figure over the completed requests, sorted.
struct Sorted {
  std::vector<double> ttft, inter_token, tpot, e2e;

  explicit Sorted(std::span<const Record> records) {
    for (const Record& record : records) {
      if (!record.completed()) continue;
      const Latencies latencies = LatenciesOf(record);
      ttft.push_back(latencies.ttft);
      e2e.push_back(latencies.e2e);
      if (latencies.tpot) tpot.push_back(*latencies.tpot);
      inter_token.insert(inter_token.end(), latencies.inter_token.begin(),
                         latencies.inter_token.end());
    }
    for (std::vector<double>* samples : {&ttft, &inter_token, &tpot, &e2e}) {
      std::sort(samples->begin(), samples->end());
    }
  }
};

std::string DistributionPlot(const char* title, std::span<const double> sorted) {
  Plot plot{.title = title, .x_label = "milliseconds", .y_label = "% of samples at or below"};
  if (!sorted.empty()) {
    // A long tail would press everything else against the axis.
    plot.log_x = sorted.front() > 0 && sorted.back() > 20 * Percentile(sorted, 50);
    PlotSeries& curve = plot.series.emplace_back();
    const size_t n = std::min(kCurvePoints, std::max<size_t>(sorted.size(), 2));
    for (size_t i = 0; i < n; ++i) {
      const double percent = 100 * static_cast<double>(i) / static_cast<double>(n - 1);
      curve.points.emplace_back(Percentile(sorted, percent), percent);
    }
  }
  return SvgOf(plot);
}

std::string TimelinePlots(std::span<const Record> records) {
  PlotSeries tokens, requests, in_flight;
  for (const TimelineBin& bin : MakeTimeline(records, kTimelineBins)) {
    const double middle = bin.begin_s + bin.width_s / 2;
    tokens.points.emplace_back(middle, static_cast<double>(bin.tokens) / bin.width_s);
    requests.points.emplace_back(middle, static_cast<double>(bin.completed) / bin.width_s);
    in_flight.points.emplace_back(middle, bin.in_flight);
  }
  const char* x = "seconds since the start";
  return absl::StrCat(
      SvgOf(
          {.title = "Output throughput", .x_label = x, .y_label = "tokens/s", .series = {tokens}}),
      SvgOf({.title = "Completed requests",
             .x_label = x,
             .y_label = "requests/s",
             .series = {requests}}),
      SvgOf({.title = "Requests in flight",
             .x_label = x,
             .y_label = "requests",
             .series = {in_flight}}));
}

std::string SweepPlots(const Result& result) {
  std::vector<double> loads;
  PlotSeries throughput, ttft50{.name = "p50", .points = {}}, ttft99{.name = "p99", .points = {}};
  PlotSeries gap50 = ttft50, gap99 = ttft99;
  for (const Level& level : result.levels) {
    const Report& r = level.report;
    if (r.completed == 0) continue;
    loads.push_back(level.load);
    throughput.points.emplace_back(level.load, r.output_throughput);
    ttft50.points.emplace_back(level.load, r.ttft_ms.p50);
    ttft99.points.emplace_back(level.load, r.ttft_ms.p99);
    gap50.points.emplace_back(level.load, r.inter_token_ms.p50);
    gap99.points.emplace_back(level.load, r.inter_token_ms.p99);
  }
  const char* x = result.options.rate ? "requests/s asked for" : "users";
  const auto plot = [&](const char* title, const char* y, std::vector<PlotSeries> series) {
    return SvgOf({.title = title,
                  .x_label = x,
                  .y_label = y,
                  .series = std::move(series),
                  .x_ticks = loads,
                  .log_x = true,
                  .markers = true});
  };
  return absl::StrCat(plot("Output throughput by load", "tokens/s", {throughput}),
                      plot("Time to first token by load", "milliseconds", {ttft50, ttft99}),
                      plot("Inter-token latency by load", "milliseconds", {gap50, gap99}));
}

std::string LatencyTable(const Level& level) {
  std::string out =
      "<div class=\"wide\"><table><tr><th>milliseconds</th><th>mean</th><th>p50</th><th>p90</th>"
      "<th>p95</th><th>p99</th><th>max</th><th>std</th></tr>\n";
  for (const auto& [name, s] : LatencyRows(level)) {
    absl::StrAppend(&out, "<tr><td>", name, "</td>");
    for (const double value : {s.mean, s.p50, s.p90, s.p95, s.p99, s.max, s.std}) {
      absl::StrAppendFormat(&out, "<td>%.2f</td>", value);
    }
    absl::StrAppend(&out, "</tr>\n");
  }
  return out + "</table></div>\n";
}

std::string SweepTable(const Result& result) {
  std::string out = absl::StrCat(
      "<div class=\"wide\"><table><tr><th>", result.options.rate ? "requests/s" : "users",
      "</th><th>completed</th><th>failed</th><th>requests/s</th><th>tokens/s</th>"
      "<th>TTFT p50</th><th>TTFT p99</th><th>ITL p50</th><th>E2E p99</th><th>good %</th>"
      "<th></th></tr>\n");
  for (size_t i = 0; i < result.levels.size(); ++i) {
    const Level& level = result.levels[i];
    const Report& r = level.report;
    absl::StrAppendFormat(&out, "<tr%s><td>%g</td><td>%d</td><td>%d</td>",
                          i == result.best ? " class=\"best\"" : "", level.load, r.completed,
                          r.failed);
    for (const double value : {r.request_throughput, r.output_throughput, r.ttft_ms.p50,
                               r.ttft_ms.p99, r.inter_token_ms.p50, r.e2e_ms.p99}) {
      absl::StrAppendFormat(&out, "<td>%.2f</td>", value);
    }
    const std::string good = r.good ? absl::StrFormat("%.2f", 100 * r.good_fraction()) : "-";
    absl::StrAppend(&out, "<td>", good, "</td><td>", Sweep::Name(level.verdict), "</td></tr>\n");
  }
  return out + "</table></div>\n";
}

std::string FactsTable(const Level& level) {
  std::string out = "<div class=\"wide\"><table class=\"facts\">\n";
  for (const auto& [name, value] : FactRows(level)) {
    absl::StrAppend(&out, "<tr><td>", name, "</td><td>", EscapeXml(value), "</td></tr>\n");
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string HtmlReport(const Result& result) {
  const Level& level = result.main_level();
  const Sorted sorted(level.run.records);
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
      "<title>Load test of ",
      EscapeXml(result.model.name), "</title>\n", kStyle, "</head><body>\n<h1>Load test of ",
      EscapeXml(result.model.name), "</h1>\n<p>", EscapeXml(result.options.connect.server), ", ",
      EscapeXml(result.model.device), ", version ", EscapeXml(result.model.server_version), ", ",
      EscapeXml(result.started), "</p>\n");
  if (result.options.sweep.on) {
    absl::StrAppend(&out, "<h2>Sweep</h2>\n", SweepTable(result), "<div class=\"plots\">\n",
                    SweepPlots(result), "</div>\n");
  }
  absl::StrAppend(&out, "<h2>", EscapeXml(DescribeLoad(result.options, level.load)), "</h2>\n",
                  FactsTable(level), "<h2>Latencies</h2>\n", LatencyTable(level),
                  "<div class=\"plots\">\n", DistributionPlot("Time to first token", sorted.ttft),
                  DistributionPlot("Inter-token latency", sorted.inter_token),
                  DistributionPlot("Time per output token", sorted.tpot),
                  DistributionPlot("End to end", sorted.e2e),
                  "</div>\n<h2>Over time</h2>\n<div class=\"plots\">\n",
                  TimelinePlots(level.run.records), "</div>\n</body></html>\n");
  return out;
}

}  // namespace ovq::load
