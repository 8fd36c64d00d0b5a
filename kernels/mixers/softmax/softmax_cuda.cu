#include "kernels/mixers/softmax/softmax.h"

namespace ovq {

void SoftmaxAttentionCuda(DeviceContext&, const SoftmaxArgs&) {
  Check(false, "SoftmaxAttentionCuda");
}

}  // namespace ovq
