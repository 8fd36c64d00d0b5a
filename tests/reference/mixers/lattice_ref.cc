// Reference implementation of Lattice (README.md) in double; slots are rounded to float32 after
// every token.
#include <cmath>
#include <vector>

#include "kernels/mixers/lattice/lattice.h"
#include "kernels/mixers/recurrent/heads.h"
#include "tests/reference/reference_of.h"
#include "tests/reference/vectors.h"

namespace ovq::kernels {
namespace {

Vector Scaled(Vector x, double factor) {
  for (double& element : x) element *= factor;
  return x;
}

// Inputs of one token for one head.
struct Token {
  Vector q, k, v;
  double gamma, mu, tau;
};

Token LoadToken(const LatticeArgs& args, int h, int64_t token_index) {
  const LatticeConfig& config = args.config;
  const auto vector = [&](const float* of, int64_t stride, int64_t width) {
    const float* begin = of + token_index * stride + h * width;
    return Vector(begin, begin + width);
  };
  const int64_t gate = token_index * config.n_heads + h;
  const LatticeGates& gates = args.gates;
  Token token = {.q = vector(args.q, args.qk_stride, config.n_slots),
                 .k = vector(args.k, args.qk_stride, config.n_slots),
                 .v = vector(args.v, args.v_stride, config.value_head_dim),
                 .gamma = gates.gamma[gate],
                 .mu = 1,
                 .tau = 0};
  if (gates.mu) token.mu = gates.mu[gate];
  if (gates.rate) {
    token.tau = token.gamma * -static_cast<double>(gates.rate[h]) * gates.dt[gate];
  }
  return token;
}

// New slot: eq. 13 with the objective's h and c_i, then eq. 16 or 18, then eq. 14.
Vector UpdatedSlot(const LatticeConfig& config, const Token& token, const Vector& h, double k,
                   const Vector& s) {
  const double length = config.normalized_projection ? 1 : std::sqrt(Dot(s, s));
  const Vector phi = Scaled(s, 1 / length);
  const double along = Dot(phi, h);
  const double c = config.objective == LatticeObjective::kEncoding ? k - along : k;
  Vector w(s.size());
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = token.mu * s[i] + token.gamma * c / length * (h[i] - phi[i] * along);
    w[i] = std::copysign(std::max(std::abs(w[i]) - token.tau, 0.0), w[i]);
  }
  const double moved = std::sqrt(Dot(w, w));
  if (moved == 0) return s;
  return config.normalized_projection ? Scaled(w, 1 / moved) : w;
}

void AdvanceToken(const LatticeArgs& args, std::byte* session, int h, int64_t token_index) {
  const LatticeConfig& config = args.config;
  const Token token = LoadToken(args, h, token_index);
  const auto n_slots = static_cast<size_t>(config.n_slots);
  float* state = args.slots.At<float>(session, h);
  std::vector<Vector> slots;
  for (size_t i = 0; i < n_slots; ++i) {
    const float* slot = state + static_cast<int64_t>(i) * config.stride();
    slots.emplace_back(slot, slot + config.value_head_dim);
  }
  Vector target = token.v;
  for (size_t i = 0; i < n_slots && config.objective == LatticeObjective::kDecoding; ++i) {
    const double length = config.normalized_projection ? 1 : std::sqrt(Dot(slots[i], slots[i]));
    for (size_t c = 0; c < target.size(); ++c) target[c] -= token.k[i] * slots[i][c] / length;
  }
  Vector y(token.v.size(), 0.0);
  for (size_t i = 0; i < n_slots; ++i) {
    const Vector slot = UpdatedSlot(config, token, target, token.k[i], slots[i]);
    for (size_t c = 0; c < slot.size(); ++c) {
      state[static_cast<int64_t>(i) * config.stride() + static_cast<int64_t>(c)] =
          static_cast<float>(slot[c]);
      y[c] += token.q[i] * slot[c];
    }
  }
  float* out = args.y + token_index * config.value_width() + int64_t{h} * config.value_head_dim;
  for (size_t c = 0; c < y.size(); ++c) out[c] = static_cast<float>(y[c]);
}

}  // namespace

void LatticeRef(DeviceContext& context, const BatchSequences& seqs, const LatticeArgs& args) {
  ForEachHead(context, seqs, args.config.n_heads, [&](int s, int h) {
    for (int64_t token_index = seqs.token_begin[s]; token_index < seqs.token_begin[s + 1];
         ++token_index) {
      AdvanceToken(args, seqs.state[s], h, token_index);
    }
  });
}

const ReferenceOf<LatticeCpu> kLattice = LatticeRef;

}  // namespace ovq::kernels
