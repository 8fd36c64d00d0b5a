#include "clients/load/svg_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ovq::load {
namespace {

constexpr double kWidth = 560, kHeight = 300;
constexpr double kLeft = 74, kRight = 16, kTop = 34, kBottom = 46;

// Maps values to page coordinates.
struct Axis {
  double begin = 0, end = 1;  // page coordinates
  bool log = false;
  double low = 0, high = 1;
  std::vector<double> ticks = {};

  double Place(double value) const {
    const double at =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin + at * (end - begin);
  }
};

// `values` is not empty.
Axis MakeAxis(const std::vector<double>& values, double begin, double end, bool log,
              const std::vector<double>& ticks) {
  const auto [low, high] = std::ranges::minmax(values);
  Axis axis{.begin = begin, .end = end, .log = log};
  if (ticks.size() > 1) {
    axis.ticks = ticks;
  } else if (log) {
    const double first = std::floor(std::log10(low));
    const double last = std::max(std::ceil(std::log10(high)), first + 1);
    for (double power = first; power <= last; ++power) axis.ticks.push_back(std::pow(10, power));
  } else {
    axis.ticks = LinearTicks(std::min(low, 0.0), high, 5);
  }
  axis.low = axis.ticks.front();
  axis.high = axis.ticks.back();
  return axis;
}

void DrawLine(std::string& out, const std::string& style, double x1, double x2, double y1,
              double y2) {
  absl::StrAppendFormat(&out,
                        "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                        style, x1, x2, y1, y2);
}

// `anchor` says which end of the text lies at x.
void DrawText(std::string& out, const char* anchor, double x, double y, const std::string& text) {
  absl::StrAppendFormat(&out,
                        "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
                        x, y, anchor, EscapeXml(text));
}

void DrawGrid(std::string& out, const Axis& x, const Axis& y) {
  for (const double tick : y.ticks) {
    DrawLine(out, "grid", x.begin, x.end, y.Place(tick), y.Place(tick));
    DrawText(out, "end", x.begin - 8, y.Place(tick) + 4, absl::StrFormat("%g", tick));
  }
  for (const double tick : x.ticks) {
    DrawLine(out, "grid", x.Place(tick), x.Place(tick), y.begin, y.end);
    DrawText(out, "middle", x.Place(tick), y.begin + 17, absl::StrFormat("%g", tick));
  }
}

void DrawSeries(std::string& out, const PlotSeries& series, size_t index, const Axis& x,
                const Axis& y, bool markers) {
  absl::StrAppendFormat(&out, "<polyline class=\"s%d\" points=\"", index);
  for (const auto& [at, value] : series.points) {
    absl::StrAppendFormat(&out, "%.1f,%.1f ", x.Place(at), y.Place(value));
  }
  absl::StrAppend(&out, "\"/>\n");
  if (!markers) return;
  for (const auto& [at, value] : series.points) {
    absl::StrAppendFormat(&out,
                          "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s%g: "
                          "%g</title></circle>\n",
                          index, x.Place(at), y.Place(value),
                          series.name.empty() ? "" : EscapeXml(series.name) + ", ", at, value);
  }
}

// Draws the series' names beside their colours, in one row under the title.
void DrawLegend(std::string& out, const Plot& plot) {
  if (plot.series.size() < 2) return;
  double at = kWidth - kRight;
  for (size_t i = plot.series.size(); i-- > 0;) {
    const std::string& name = plot.series[i].name;
    at -= 7.0 * static_cast<double>(name.size()) + 8;
    DrawText(out, "start", at, 18, name);
    at -= 20;
    DrawLine(out, absl::StrCat("s", i), at, at + 15, 14, 14);
  }
}

void DrawLabels(std::string& out, const Plot& plot) {
  absl::StrAppendFormat(&out, "<text class=\"title\" x=\"8.0\" y=\"18\">%s</text>\n",
                        EscapeXml(plot.title));
  DrawText(out, "middle", (kLeft + kWidth - kRight) / 2, kHeight - 8, plot.x_label);
  absl::StrAppendFormat(&out,
                        "<text class=\"axis\" transform=\"translate(14 %.1f) rotate(-90)\" "
                        "text-anchor=\"middle\">%s</text>\n",
                        (kTop + kHeight - kBottom) / 2, EscapeXml(plot.y_label));
}

}  // namespace

std::vector<double> LinearTicks(double low, double high, int n) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / n;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step);
  for (double i = first; ticks.empty() || ticks.back() < high; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string EscapeXml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string RenderSvg(const Plot& plot) {
  std::string out = absl::StrFormat(
      "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "role=\"img\" aria-label=\"%s\">\n",
      kWidth, kHeight, EscapeXml(plot.title));
  DrawLabels(out, plot);
  std::vector<double> xs, ys;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  if (xs.empty()) {
    DrawText(out, "middle", kWidth / 2, kHeight / 2, "no data");
  } else {
    const Axis x = MakeAxis(xs, kLeft, kWidth - kRight, plot.log_x, plot.x_ticks);
    const Axis y = MakeAxis(ys, kHeight - kBottom, kTop, false, {});
    DrawGrid(out, x, y);
    for (size_t i = 0; i < plot.series.size(); ++i) {
      DrawSeries(out, plot.series[i], i, x, y, plot.markers);
    }
    DrawLegend(out, plot);
  }
  absl::StrAppend(&out, "</svg>\n");
  return out;
}

}  // namespace ovq::load
