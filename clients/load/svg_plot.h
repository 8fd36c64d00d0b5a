// Line plots as SVG, for a page that brings its own style sheet.
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
  std::vector<PlotSeries> series = {};  // at most four are told apart by colour
  std::vector<double> x_ticks = {};     // ascending, two at least; default round numbers
  bool log_x = false;                   // needs every x above 0
  bool markers = false;                 // a dot on every point, with its figures as a tooltip
};

// Without points: a plot that says so. Classes: plot, frame, grid, axis, title, s0 to s3.
std::string RenderSvg(const Plot& plot);

// Round numbers from at most low to at least high, about n of them.
std::vector<double> LinearTicks(double low, double high, int n);

std::string EscapeXml(absl::string_view text);

}  // namespace ovq::load
