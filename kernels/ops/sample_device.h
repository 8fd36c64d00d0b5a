// ReadLogits (sample.h) on each device. Arguments are already validated, and results have their
// sizes.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/common/random.h"
#include "kernels/ops/sample.h"

namespace ovq::kernels {

// The number of tokens of the vocabulary that a mask allows.
inline int64_t CountAllowed(TokenMaskBits allowed, int64_t vocab) {
  if (allowed.empty()) return vocab;
  int64_t count = 0;
  for (const uint32_t word : allowed) count += std::popcount(word);
  // Bits behind the vocabulary's end say nothing.
  if (vocab % 32 != 0) count -= std::popcount(allowed.back() >> (vocab % 32));
  return count;
}

// The random number of a draw; only the upper 53 bits are used.
inline uint64_t RandomBits(const RowDraw& draw) {
  const auto counter = static_cast<uint64_t>(draw.position);
  const uint64_t seed = draw.params.seed;
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{words[0]} << 32 | words[1];
}
// RandomBits as a fraction in [0, 1).
inline double UnitInterval(const RowDraw& draw) {
  const uint64_t bits = RandomBits(draw);
  return UnitInterval(static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits));
}

// Orders logits best first. Neither is NaN.
constexpr bool BetterLogit(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

OVQ_ON_EVERY_DEVICE(ReadLogits)

}  // namespace ovq::kernels
