// Products of candidates by AVX-512 BF16, and by AMX where there are several queries: sums of pairs
// of channels in float32, in an order of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/distance_lower_bounds.h"

namespace ovq::kernels {

// True if this CPU has AVX-512 BF16, and OVQ_MAX_ISA allows it.
bool HasBf16Dots();

// Some queries, for one block of candidates after another. One at a time in a thread.
class Bf16Dots {
 public:
  // scratch: [kMaxLowerBoundQueries][PackedPairs]
  Bf16Dots(const PackedCandidates& packed, std::span<const LowerBoundQuery> queries,
           uint32_t* scratch);
  ~Bf16Dots();
  Bf16Dots(const Bf16Dots&) = delete;
  Bf16Dots& operator=(const Bf16Dots&) = delete;

  // dots[query][64] = x . y of keys + value_scale x . y of values, of a block [PackedPairs][64].
  // dots is aligned to 64 bytes and has room for kMaxLowerBoundQueries.
  void Multiply(const uint32_t* block, float* dots) const;

 private:
  int n_rows_;
  size_t key_pairs_, value_pairs_;
  float value_scale_;
  const uint32_t* rows_;
  bool tiles_;
};

}  // namespace ovq::kernels
