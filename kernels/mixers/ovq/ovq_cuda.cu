#include "kernels/mixers/ovq/ovq.h"

namespace ovq {

void OvqAttentionCuda(DeviceContext&, const OvqArgs&) { Check(false, "OvqAttentionCuda"); }

}  // namespace ovq
