// Which centroid every key of a full chunk goes to: the discrete half of the OVQ update (paper
// section 3.2, get_nn_assignments of appendix 8.3). Shared by all devices.
#pragma once

#include <cstdint>
#include <span>

namespace ovq {

// First chunk, dictionary empty: every key goes to centroid 0, but the n_new - 1 keys with the
// lowest first_score (dot product with key 0; key 0 itself never) become centroids 1, 2, ... in
// ascending order of it. order is scratch.  All spans [chunk_len].
void AssignFirstChunk(std::span<const float> first_score, int64_t n_new, std::span<int32_t> order,
                      std::span<int32_t> assignment);

// Later chunks: the n_new keys with the lowest best_score become centroids n_old, n_old + 1, ...
// in ascending order of it; the others merge into best_slot. Ties: the lower key index first.
void AssignChunk(std::span<const float> best_score, std::span<const int32_t> best_slot,
                 int64_t n_old, int64_t n_new, std::span<int32_t> order,
                 std::span<int32_t> assignment);

}  // namespace ovq
