// Scalings of RoPE in config.json files of transformers' decoders: factors of its frequencies and
// an amplitude of its sines and cosines, for texts longer than a model was first trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/common/attrs.h"
#include "kernels/ops/ops.h"

namespace ovq::model {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope, kDivided };

// A value of rope_type, and what a family's code does then.
struct RopeType {
  std::string_view name;
  RopeScaling scaling;
};
inline constexpr RopeType kPlainRope[] = {{"default", RopeScaling::kNone}};
inline constexpr RopeType kUsualRopes[] = {{"default", RopeScaling::kNone},
                                           {"linear", RopeScaling::kLinear},
                                           {"llama3", RopeScaling::kLlama3},
                                           {"yarn", RopeScaling::kYarn},
                                           {"divided", RopeScaling::kDivided}};

inline constexpr int64_t kMaxRopeLength = int64_t{1} << 40;
// Lengths of texts at the top level of a file; 0: it does not say.
struct RopeLengths {
  int64_t original = 0;  // original_max_position_embeddings
  int64_t most = 0;      // max_position_embeddings
};

// Reads rope_type (type in older files; absent: the first of `types`) and the fields of that type
// from `object`, and sets rope.factors, one for each of n_pairs, and rope.amplitude. rope.theta is
// set. `object` keeps the errors.
void ReadRopeScaling(kernels::AttrReader& object, std::span<const RopeType> types,
                     const RopeLengths& lengths, int n_pairs, kernels::RopeSpec& rope);

}  // namespace ovq::model
