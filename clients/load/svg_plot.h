// Draws line plots as SVG for a page that has the style sheet.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace ovq::load {

struct PlotSeries {
  std::string name = {};
  std::vector<std::pair<double, double>> points = {};  // in ascending order of x
};

struct Plot {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<PlotSeries> series = {};  // the page has two colours
  std::vector<double> x_ticks = {};     // ascending, at least two; default: round numbers
  bool log_x = false;                   // requires every x to be above 0
  bool markers = false;                 // draws a dot on every point, with its values as a tooltip
};

// Returns the plot; without points, one that says so. CSS classes: plot, frame, grid, axis, title,
// s0 and s1.
std::string RenderSvg(const Plot& plot);

// Returns about n round numbers from at most `low` to at least `high`.
std::vector<double> LinearTicks(double low, double high, int n);

std::string EscapeXml(absl::string_view text);

}  // namespace ovq::load
