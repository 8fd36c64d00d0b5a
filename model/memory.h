// Which memory layers read their whole context through, where the same weights serve several.
#pragma once

#include "absl/status/status.h"
#include "model/config.h"

namespace ovq {

// "model": as config.json says.
const char* MemoryName(Memory memory);

// Sets the types of layers whose queries and keys need no positions (ovq_attention,
// closest_pair_attention, and full_attention without RoPE): their tensors are the same.
// kAsTrained: ovq_attention becomes closest_pair_attention where ovq.update says so.
// kClosestPairAll: full_attention with RoPE too, whose rows are then means of turned keys
// (distances between keys are what they are, however queries are turned). Gives each of them its
// share of a session's slots (ovq.shares). InvalidArgument names the field, or the memory that no
// layer can be read through.
absl::Status ReadThrough(Memory memory, ModelConfig& config);

}  // namespace ovq
