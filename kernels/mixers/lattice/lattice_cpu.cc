// Lattice on the CPU. For one head and token, with slots s_i [dv], q, k [n_slots], v [dv], scalars
// gamma, mu, tau, and l_i = |s_i| (1 if slots have unit length):
//   dec:  h = v - sum_i k_i s_i / l_i,  c_i = k_i;   enc:  h = v,  c_i = k_i - s_i.h / l_i
//   sim:  h = v,  c_i = k_i
//   w_i = mu s_i + gamma c_i / l_i (h - (s_i.h / l_i^2) s_i),  w_i = sign(w_i) max(|w_i| - tau, 0)
//   s_i = w_i / |w_i|, or w_i; unchanged if |w_i| = 0;  y = sum_i q_i s_i
// A task is one head of a sequence, whose slots stay in its core's cache over all tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/mixers/lattice/lattice.h"
#include "kernels/mixers/recurrent/heads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/lattice/lattice_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/mixers/recurrent/matrix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

using Padded = float[kMaxLatticeValueDim];

// Coefficients of w = mu s + size (h - along s), followed by the soft threshold `threshold`.
struct Move {
  float mu, size, along, threshold;
};

// Computes w; returns |w|^2.
float MoveSlot(const float* s, const float* h, const Move& move, int64_t stride, float* w) {
  const Floats d;
  const FloatVec mu = hn::Set(d, move.mu), size = hn::Set(d, move.size),
                 along = hn::Set(d, move.along), threshold = hn::Set(d, move.threshold);
  const bool shrinks = move.threshold > 0;
  LaneSums squares;
  ForEachLanes(stride, [&](int64_t i, int part) HWY_ATTR {
    const FloatVec slot = hn::LoadU(d, s + i);
    const FloatVec across = hn::NegMulAdd(along, slot, hn::Load(d, h + i));
    FloatVec moved = hn::MulAdd(size, across, hn::Mul(mu, slot));
    if (shrinks) {
      const FloatVec left = hn::Max(hn::Sub(hn::Abs(moved), threshold), hn::Zero(d));
      moved = hn::CopySign(left, moved);
    }
    hn::Store(moved, d, w + i);
    squares.Add(part, moved, moved);
  });
  return squares.Total();
}

// Slots that are updated together, so that the latency of one slot's sum is hidden by the others'.
constexpr int64_t kGroup = 8;

// For n slots i in order: s_i = scale_i w_i, y += q_i s_i. w [n][kMaxLatticeValueDim].
void StoreAndReadSlots(const Padded* w, const float* scale, const float* q, int64_t n,
                       int64_t stride, float* s, float* y) {
  const Floats d;
  ForEachLanes(stride, [&](int64_t i, int) HWY_ATTR {
    FloatVec sum = hn::Load(d, y + i);
    for (int64_t g = 0; g < n; ++g) {
      const FloatVec slot = hn::Mul(hn::Load(d, w[g] + i), hn::Set(d, scale[g]));
      hn::StoreU(slot, d, s + g * stride + i);
      sum = hn::MulAdd(hn::Set(d, q[g]), slot, sum);
    }
    hn::Store(sum, d, y + i);
  });
}

// y = v - y
void SubtractFrom(const float* v, int64_t stride, float* y) {
  const Floats d;
  ForEachLanes(stride, [&](int64_t i, int) HWY_ATTR {
    hn::Store(hn::Sub(hn::Load(d, v + i), hn::Load(d, y + i)), d, y + i);
  });
}

class Head {
 public:
  Head(const LatticeArgs& args, std::byte* session, int h)
      : args_(args),
        config_(args.config),
        head_(h),
        n_slots_(config_.n_slots),
        stride_(config_.stride()),
        slots_(args.slots.At<float>(session, h)),
        inverse_(static_cast<size_t>(n_slots_), 1.0f),
        weights_(static_cast<size_t>(n_slots_)) {}

  void AdvanceToken(int64_t token) {
    const int64_t first = int64_t{head_} * config_.value_head_dim;
    const float* k = args_.k + token * args_.qk_stride + head_ * n_slots_;
    std::copy_n(args_.v + token * args_.v_stride + first, config_.value_head_dim, value_);
    if (!config_.normalized_projection) MeasureSlots();
    const float* target = value_;
    if (config_.objective == LatticeObjective::kDecoding) {
      for (int64_t i = 0; i < n_slots_; ++i) weights_[i] = k[i] * inverse_[i];
      MultiplyTransposed({slots_, n_slots_, stride_}, weights_.data(), error_);
      SubtractFrom(value_, stride_, error_);
      target = error_;
    }
    std::fill_n(read_, stride_, 0.0f);
    const float* q = args_.q + token * args_.qk_stride + head_ * n_slots_;
    for (int64_t i = 0; i < n_slots_; i += kGroup) {
      UpdateSlots(token, i, std::min(kGroup, n_slots_ - i), k + i, q + i, target);
    }
    std::copy_n(read_, config_.value_head_dim, args_.y + token * config_.value_width() + first);
  }

 private:
  void MeasureSlots() {
    for (int64_t i = 0; i < n_slots_; ++i) {
      const float* s = slots_ + i * stride_;
      inverse_[i] = 1.0f / std::sqrt(DotProduct(s, s, stride_));
    }
  }

  // Updates n slots from `first` on.
  void UpdateSlots(int64_t token, int64_t first, int64_t n, const float* k, const float* q,
                   const float* h) {
    const int64_t gate = token * config_.n_heads + head_;
    float *const s = slots_ + first * stride_, towards[kGroup], squares[kGroup], scale[kGroup];
    for (int64_t g = 0; g < n; ++g) towards[g] = DotProduct(s + g * stride_, h, stride_);
    for (int64_t g = 0; g < n; ++g) {
      const float inverse = inverse_[first + g], along = towards[g] * inverse;
      const float c = config_.objective == LatticeObjective::kEncoding ? k[g] - along : k[g];
      const Move move = {.mu = args_.gates.Mu(gate),
                         .size = args_.gates.gamma[gate] * c * inverse,
                         .along = along * inverse,
                         .threshold = args_.gates.Tau(gate, head_)};
      squares[g] = MoveSlot(s + g * stride_, h, move, stride_, moved_[g]);
    }
    for (int64_t g = 0; g < n; ++g) {
      const bool moved = squares[g] > 0;
      if (!moved) std::copy_n(s + g * stride_, stride_, moved_[g]);
      scale[g] = moved && config_.normalized_projection ? 1.0f / std::sqrt(squares[g]) : 1.0f;
    }
    StoreAndReadSlots(moved_, scale, q, n, stride_, s, read_);
  }

  const LatticeArgs& args_;
  const LatticeConfig& config_;
  const int head_;
  const int64_t n_slots_, stride_;
  float* const slots_;
  std::vector<float> inverse_;  // [n_slots], 1 / l_i
  std::vector<float> weights_;  // [n_slots]
  alignas(64) Padded value_ = {}, error_, read_, moved_[kGroup];
};

void AdvanceHead(const BatchSequences& seqs, const LatticeArgs& args, int s, int h) {
  Head head(args, seqs.state[s], h);
  for (int32_t token = seqs.token_begin[s]; token < seqs.token_begin[s + 1]; ++token) {
    head.AdvanceToken(token);
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {
HWY_EXPORT(AdvanceHead);
}  // namespace

void LatticeCpu(DeviceContext& context, const BatchSequences& seqs, const LatticeArgs& args) {
  ForEachHead(context, seqs, args.config.n_heads, [&](int s, int h) {
    HWY_DYNAMIC_DISPATCH(AdvanceHead)(seqs, args, s, h);
  });
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
