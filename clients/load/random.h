// Random numbers that are the same everywhere: the standard library fixes its generators but not
// what its distributions make of them.
#pragma once

#include <cstdint>

namespace ovq::load {

// SplitMix64. Streams of one seed are independent of each other: a request's numbers do not depend
// on the order in which requests are made.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t Next();
  double Unit();               // uniform in (0, 1)
  uint64_t Below(uint64_t n);  // uniform in [0, n), n > 0
  double Normal();             // mean 0, variance 1
  double Exponential();        // mean 1
  double Gamma(double shape);  // mean and variance: shape

 private:
  uint64_t state_;
};

}  // namespace ovq::load
