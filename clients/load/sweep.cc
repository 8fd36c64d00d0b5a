#include "clients/load/sweep.h"

#include <algorithm>
#include <cmath>

namespace ovq::load {

const char* Sweep::Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGoOn:
      return "";
    case Verdict::kSaturated:
      return "saturated";
    case Verdict::kGoodputBroken:
      return "goodput broken";
    case Verdict::kFailed:
      return "nothing completed";
    case Verdict::kLastLevel:
      return "last level";
  }
  return "";
}

Sweep::Sweep(const SweepOptions& options, double first_load, bool whole)
    : options_(options), whole_(whole), load_(first_load) {}

Sweep::Verdict Sweep::Add(const Report& report) {
  const size_t level = levels_++;
  if (report.completed == 0) return Verdict::kFailed;
  if (report.good_fraction() < options_.min_good) return Verdict::kGoodputBroken;
  const double before = best_throughput_;
  if (report.output_throughput > best_throughput_) {
    best_throughput_ = report.output_throughput;
    best_ = level;
  }
  if (level > 0 && report.output_throughput < before * (1 + options_.min_gain)) {
    return Verdict::kSaturated;
  }
  if (levels_ == static_cast<size_t>(options_.max_levels)) return Verdict::kLastLevel;
  const double next = load_ * options_.factor;
  load_ = whole_ ? std::max(std::round(next), load_ + 1) : next;
  return Verdict::kGoOn;
}

}  // namespace ovq::load
