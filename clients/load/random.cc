#include "clients/load/random.h"

#include <cmath>
#include <numbers>

namespace ovq::load {
namespace {

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

}  // namespace

Random::Random(uint64_t seed, uint64_t stream)
    : state_(Mix(Mix(seed + kGoldenGamma) ^ (stream * kGoldenGamma))) {}

uint64_t Random::Next() { return Mix(state_ += kGoldenGamma); }

double Random::Unit() { return (static_cast<double>(Next() >> 12) + 0.5) * 0x1p-52; }

uint64_t Random::Below(uint64_t n) {
  // The high half of a 128-bit product; its bias is below n / 2^64.
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{Next()} * n) >> 64);
}

double Random::Normal() {
  const double radius = std::sqrt(-2 * std::log(Unit()));
  return radius * std::cos(2 * std::numbers::pi * Unit());
}

double Random::Exponential() { return -std::log(Unit()); }

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); below 1 by their
// note: Gamma(a) = Gamma(a + 1) U^(1/a).
double Random::Gamma(double shape) {
  if (shape < 1) {
    const double boost = std::pow(Unit(), 1 / shape);
    return Gamma(shape + 1) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {  // rejects fewer than one in twenty
    const double x = Normal();
    const double cube = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (cube <= 0) continue;
    if (std::log(Unit()) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

}  // namespace ovq::load
