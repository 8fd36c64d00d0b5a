// The reference of the matrix recurrence (matrix_state.h): a plain matrix, token after token, in
// double.
#include <vector>

#include "kernels/mixers/recurrent/matrix_state.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

// S of one head as a plain matrix, in double while a token rewrites it.
class Matrix {
 public:
  Matrix(const MatrixStates& states, std::byte* session, int head)
      : states_(states), session_(session), head_(head) {
    for (int i = 0; i < states.key_dim; ++i) {
      for (int c = 0; c < states.value_dim; ++c) values_.push_back(Stored(i, c));
    }
  }
  double& at(int i, int c) { return values_[i * states_.value_dim + c]; }
  // (S^T x)[c] = sum_i S[i][c] x[i].
  double TransposedTimes(const float* x, int c) {
    double sum = 0;
    for (int i = 0; i < states_.key_dim; ++i) sum += at(i, c) * x[i];
    return sum;
  }
  void Store() {
    for (int i = 0; i < states_.key_dim; ++i) {
      for (int c = 0; c < states_.value_dim; ++c) Stored(i, c) = static_cast<float>(at(i, c));
    }
  }

 private:
  float& Stored(int i, int c) const {
    return states_.Columns(session_, head_,
                           c / kStateColumns)[i * kStateColumns + c % kStateColumns];
  }
  const MatrixStates& states_;
  std::byte* session_;
  const int head_;
  std::vector<double> values_;
};

void AdvanceHead(const MatrixStates& states, std::byte* session, int64_t token, int head) {
  const int dk = states.key_dim, dv = states.value_dim;
  const float* k = states.k + token * states.stride + states.key_head(head) * dk;
  const float* q = states.q + token * states.stride + states.key_head(head) * dk;
  const float* v = states.v + token * states.stride + head * dv;
  const int64_t gate = token * states.n_heads + head;
  Matrix s(states, session, head);
  for (int c = 0; c < dv; ++c) {
    for (int i = 0; i < dk; ++i) {
      s.at(i, c) *= states.decays_keys ? states.decay[gate * dk + i] : states.decay[gate];
    }
    const double error = v[c] - (states.rule == StateRule::kDelta ? s.TransposedTimes(k, c) : 0);
    for (int i = 0; i < dk; ++i) s.at(i, c) += k[i] * (states.beta[gate] * error);
    const double skipped = states.skip ? double{states.skip[head * dv + c]} * v[c] : 0;
    states.y[gate * dv + c] = static_cast<float>(s.TransposedTimes(q, c) + skipped);
  }
  s.Store();
}

}  // namespace

void AdvanceStates(DeviceContext&, const BatchSequences& seqs, const MatrixStates& states) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    for (int64_t token = seqs.token_begin[s]; token < seqs.token_begin[s + 1]; ++token) {
      for (int head = 0; head < states.n_heads; ++head) {
        AdvanceHead(states, seqs.state[s], token, head);
      }
    }
  }
}

const ReferenceOf<cpu::AdvanceStates> kAdvanceStates = AdvanceStates;

}  // namespace ovq::kernels::ref
