#include "clients/load/sweep.h"

#include <algorithm>
#include <cmath>

namespace ovq::load {

std::string Sweep::Add(const Report& report) {
  const int level = levels_++;
  if (report.completed == 0) return "nothing completed";
  if (report.duration_s < absl::ToDoubleSeconds(options_.min_time)) return "too short to tell";
  if (report.good_fraction() < options_.min_good) return "goodput broken";
  const double before = best_throughput_;
  if (report.output_throughput > best_throughput_) {
    best_throughput_ = report.output_throughput;
    best_ = level;
  }
  if (level > 0 && report.output_throughput < before * (1 + options_.min_gain)) return "saturated";
  if (levels_ == options_.max_levels) return "last level";
  const double next = load_ * options_.factor;
  load_ = whole_ ? std::max(std::round(next), load_ + 1) : next;
  return "";
}

}  // namespace ovq::load
