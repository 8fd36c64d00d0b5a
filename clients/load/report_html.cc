#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/load/report.h"
#include "clients/load/svg_plot.h"

namespace ovq::load {
namespace {

constexpr int kTimelineBins = 60;
constexpr size_t kCurvePoints = 300;

// Colours that can be told apart in print and by most colour-blind readers (Okabe and Ito); lighter
// on dark pages.
constexpr char kStyle[] = R"(<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --soft: #5b6470;
  --line: #dfe3e8; --c0: #0072b2; --c1: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --text: #e6e9ed; --soft: #9aa4b0;
  --line: #30363d; --c0: #56b4e9; --c1: #f0883e; } }
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
</style>
)";

std::string DistributionPlot(const char* title, const Summary& figure) {
  Plot plot{.title = title, .x_label = "milliseconds", .y_label = "% of samples at or below"};
  const std::vector<double>& sorted = figure.samples;
  if (!sorted.empty()) {
    // A logarithmic axis keeps a long tail from pressing everything else against the axis.
    plot.log_x = sorted.front() > 0 && sorted.back() > 20 * figure.p50;
    PlotSeries& curve = plot.series.emplace_back();
    const size_t n = std::min(kCurvePoints, std::max<size_t>(sorted.size(), 2));
    for (size_t i = 0; i < n; ++i) {
      const double percent = 100 * static_cast<double>(i) / static_cast<double>(n - 1);
      curve.points.emplace_back(Percentile(sorted, percent), percent);
    }
  }
  return RenderSvg(plot);
}

std::string TimelinePlots(std::span<const Record> records) {
  const std::vector<TimelineBin> timeline = MakeTimeline(records, kTimelineBins);
  const auto plot = [&](const char* title, const char* y, auto value) {
    PlotSeries series;
    for (const TimelineBin& bin : timeline) {
      series.points.emplace_back(bin.begin_s + bin.width_s / 2, value(bin));
    }
    return RenderSvg(
        {.title = title, .x_label = "seconds since the start", .y_label = y, .series = {series}});
  };
  using Bin = TimelineBin;
  return absl::StrCat(
      plot("Output throughput", "tokens/s",
           [](const Bin& bin) { return static_cast<double>(bin.tokens) / bin.width_s; }),
      plot("Completed requests", "requests/s",
           [](const Bin& bin) { return static_cast<double>(bin.completed) / bin.width_s; }),
      plot("Requests in flight", "requests", [](const Bin& bin) { return bin.in_flight; }));
}

std::string SweepPlots(const Result& result) {
  using Value = double (*)(const Report&);
  const auto plot = [&](const char* title, const char* y,
                        const std::vector<std::pair<const char*, Value>>& curves) {
    Plot plot{.title = title,
              .x_label = result.options.rate ? "requests/s asked for" : "users",
              .y_label = y,
              .log_x = true,
              .markers = true};
    for (const auto& [name, value] : curves) plot.series.push_back({.name = name});
    for (const Level& level : result.levels) {
      if (level.report.completed == 0) continue;
      plot.x_ticks.push_back(level.load);
      for (size_t i = 0; i < curves.size(); ++i) {
        plot.series[i].points.emplace_back(level.load, curves[i].second(level.report));
      }
    }
    return RenderSvg(plot);
  };
  return absl::StrCat(plot("Output throughput by load", "tokens/s",
                           {{"", [](const Report& r) { return r.output_throughput; }}}),
                      plot("Time to first token by load", "milliseconds",
                           {{"p50", [](const Report& r) { return r.ttft_ms.p50; }},
                            {"p99", [](const Report& r) { return r.ttft_ms.p99; }}}),
                      plot("Inter-token latency by load", "milliseconds",
                           {{"p50", [](const Report& r) { return r.inter_token_ms.p50; }},
                            {"p99", [](const Report& r) { return r.inter_token_ms.p99; }}}));
}

// heading: whether the first row names the columns. best: index of the highlighted row; 0: none.
std::string Table(const std::vector<Cells>& rows, bool heading, size_t best = 0) {
  std::string out = "<div class=\"wide\"><table>";
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* tag = heading && i == 0 ? "th" : "td";
    out += best > 0 && i == best ? "<tr class=\"best\">" : "<tr>";
    for (const std::string& cell : rows[i]) {
      absl::StrAppend(&out, "<", tag, ">", EscapeXml(cell), "</", tag, ">");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string SweepTable(const Result& result) {
  std::vector<Cells> rows = {{result.options.rate ? "requests/s" : "users", "completed", "failed",
                              "requests/s", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50",
                              "E2E p99", "good %", ""}};
  for (const Level& level : result.levels) rows.push_back(SweepCells(level));
  return Table(rows, /*heading=*/true, result.best ? *result.best + 1 : 0);
}

}  // namespace

std::string HtmlReport(const Result& result) {
  const Level& level = result.main_level();
  const Report& r = level.report;
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
                  Table(FactRows(level), /*heading=*/false), "<h2>Latencies</h2>\n",
                  Table(LatencyTable(level), /*heading=*/true), "<div class=\"plots\">\n",
                  DistributionPlot("Time to first token", r.ttft_ms),
                  DistributionPlot("Inter-token latency", r.inter_token_ms),
                  DistributionPlot("Time per output token", r.tpot_ms),
                  DistributionPlot("End to end", r.e2e_ms),
                  "</div>\n<h2>Over time</h2>\n<div class=\"plots\">\n",
                  TimelinePlots(level.run.records), "</div>\n<h2>Setup</h2>\n",
                  Table(SetupRows(result), /*heading=*/false), "</body></html>\n");
  return out;
}

}  // namespace ovq::load
