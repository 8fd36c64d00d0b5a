#include "kernels/mixers/vq/vq.h"

namespace ovq {

void VqAttentionCuda(DeviceContext&, const VqArgs&) { Check(false, "VqAttentionCuda"); }

}  // namespace ovq
