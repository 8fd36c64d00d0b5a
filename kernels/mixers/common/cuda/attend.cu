#include "kernels/mixers/common/cuda/attend.h"

namespace ovq::cuda {

int Waves(const StepSeqs&, int32_t) { return 0; }
void StoreRecent(DeviceContext&, const AttentionBlocks&, const StepSeqs&, const AttentionRows&, int,
                 bool) {}
void AttendWave(DeviceContext&, const AttentionBlocks&, const StepSeqs&, const AttentionRows&,
                int) {}

}  // namespace ovq::cuda
