// A step's arrays on their way to the device.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/device.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// Host spans as given; `seqs.device`, token_ids and logit_rows in the device's memory.
struct StagedStep {
  StepSeqs seqs;
  std::span<const int32_t> token_ids;   // [n_rows]
  std::span<const int32_t> logit_rows;  // [n_logit_rows]
};

// Copies the arrays to the device in one transfer; good until the next step is staged. Bounds of
// `seqs` that are 0 are computed.
StagedStep StageStep(DeviceContext& context, const StepSeqs& seqs,
                     std::span<const int32_t> token_ids = {},
                     std::span<const int32_t> logit_rows = {});

}  // namespace ovq
