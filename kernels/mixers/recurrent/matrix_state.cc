#include "kernels/mixers/recurrent/matrix_state.h"

#include <vector>

namespace ovq::kernels {

StateField MatrixStateField(int64_t n_heads, int64_t key_dim, int64_t value_dim) {
  return {"matrices", DType::kF32, {n_heads, StateColumnBlocks(value_dim), key_dim, kStateColumns}};
}

void AdvanceStates(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states) {
  Check(states.n_heads % states.n_key_heads == 0, "AdvanceStates: value heads of every key head");
  Check(states.key_dim <= kMaxStateKeyDim, "AdvanceStates: key_dim");
  Check(!states.decays_keys || states.rule == StateRule::kDelta, "AdvanceStates: decays of keys");
  Dispatch<cpu::AdvanceStates, cuda::AdvanceStates>(context, seqs, states);
}

}  // namespace ovq::kernels
