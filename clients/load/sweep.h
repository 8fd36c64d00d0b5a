// Which loads a sweep tries, and when it has seen enough.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "clients/load/options.h"
#include "clients/load/stats.h"

namespace ovq::load {

class Sweep {
 public:
  enum class Verdict : uint8_t {
    kGoOn,
    kSaturated,      // throughput hardly rose
    kGoodputBroken,  // too few good requests
    kFailed,         // nothing completed
    kLastLevel,
  };
  static const char* Name(Verdict verdict);

  // Loads are users (whole numbers) or requests a second.
  Sweep(const SweepOptions& options, double first_load, bool whole);

  double load() const { return load_; }  // of the level to run now
  // Judges that level; after anything but kGoOn there is no next one.
  Verdict Add(const Report& report);
  // The level with the highest output throughput among those that kept --goodput (all without it);
  // nullopt if none did.
  std::optional<size_t> best() const { return best_; }

 private:
  const SweepOptions options_;
  const bool whole_;
  double load_;
  size_t levels_ = 0;
  std::optional<size_t> best_;
  double best_throughput_ = 0;
};

}  // namespace ovq::load
