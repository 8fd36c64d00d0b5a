// Lattice's memory of slots, one token after another, forward and backward: a head's slots stay in
// the processor's nearest caches, while PyTorch's operations on all heads pass over memory some
// twenty times a token.
//
// A is float in training, double in the tests, which compare with lattice.py's own loop. All arrays
// are dense and row-major. Slots have unit length before and after every token.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kSegment = 32;  // tokens whose slots the backward pass computes again and keeps

enum Objective : int64_t { kDec, kEnc, kSim };  // eqs. 6, 9 and 11

struct Rule {
  int64_t n_slots, dim;
  Objective objective;
  bool orthogonal;  // only what is orthogonal to a slot is written into it
};

template <class A>
A Dot(const A* a, const A* b, int64_t n) {
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class A>
void Add(A scale, const A* x, int64_t n, A* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

// One token's inputs: q, k [n_slots], v [dim].
template <class A>
struct Token {
  const A *q, *k, *v;
  A rate, keep;
};

// The values between a token's inputs and its new slots that the backward pass needs.
template <class A>
struct Update {
  std::vector<A> target, weights, along, lengths;

  explicit Update(const Rule& rule)
      : target(rule.dim), weights(rule.n_slots), along(rule.n_slots), lengths(rule.n_slots) {}
};

// next_i = w_i / |w_i|, w_i = keep s_i + rate c_i (t - a_i s_i), for slots s_i [dim]:
//   t = v - sum_j k_j s_j (dec) or v;  c_i = k_i - s_i.v (enc) or k_i;
//   a_i = s_i.t, or 0 where the whole of t is written.
// keep is positive, so an orthogonal update leaves no slot without length.
template <class A>
void Advance(const Rule& rule, const Token<A>& token, const A* slots, Update<A>& update, A* next) {
  const int64_t dim = rule.dim;
  A* target = update.target.data();
  std::copy(token.v, token.v + dim, target);
  if (rule.objective == kDec)
    for (int64_t i = 0; i < rule.n_slots; ++i) Add(-token.k[i], slots + i * dim, dim, target);
  for (int64_t i = 0; i < rule.n_slots; ++i) {
    const A *slot = slots + i * dim, along = Dot(slot, target, dim);
    update.weights[i] = token.k[i] - (rule.objective == kEnc ? along : A(0));
    update.along[i] = rule.orthogonal ? along : A(0);
    const A written = token.rate * update.weights[i];
    const A kept = token.keep - written * update.along[i];
    A* out = next + i * dim;
    for (int64_t d = 0; d < dim; ++d) out[d] = kept * slot[d] + written * target[d];
    update.lengths[i] = std::sqrt(Dot(out, out, dim));
    const A scale = 1 / update.lengths[i];
    for (int64_t d = 0; d < dim; ++d) out[d] *= scale;
  }
}

// A token's gradients, shaped like its inputs.
template <class A>
struct TokenGradient {
  A *q, *k, *v, *rate, *keep;
};

// The gradient of Advance and of the token's result sum_i q_i next_i. y_gradient [dim];
// slot_gradient [n_slots, dim]: in, of the new slots by later tokens; out, of the old ones.
template <class A>
void Retreat(const Rule& rule, const Token<A>& token, const A* slots, const A* next,
             const Update<A>& update, const A* y_gradient, A* slot_gradient,
             const TokenGradient<A>& gradient) {
  const int64_t dim = rule.dim;
  const A* target = update.target.data();
  std::fill(gradient.v, gradient.v + dim, A(0));
  *gradient.rate = *gradient.keep = 0;
  for (int64_t i = 0; i < rule.n_slots; ++i) {
    const A *slot = slots + i * dim, *unit = next + i * dim;
    A* g = slot_gradient + i * dim;
    gradient.q[i] = Dot(unit, y_gradient, dim);
    Add(token.q[i], y_gradient, dim, g);
    const A inside = Dot(unit, g, dim), scale = 1 / update.lengths[i];
    for (int64_t d = 0; d < dim; ++d) g[d] = scale * (g[d] - inside * unit[d]);  // of w_i

    const A weight = update.weights[i], along = update.along[i], by_slot = Dot(g, slot, dim);
    const A written = token.rate * weight;
    const A of_written = Dot(g, target, dim) - along * by_slot;
    const A of_along = rule.orthogonal ? -written * by_slot : A(0);
    const A of_weight = token.rate * of_written;
    *gradient.keep += by_slot;
    *gradient.rate += of_written * weight;
    gradient.k[i] = of_weight;
    const A on_target = of_along - (rule.objective == kEnc ? of_weight : A(0));
    for (int64_t d = 0; d < dim; ++d) {
      gradient.v[d] += written * g[d] + on_target * slot[d];
      g[d] = (token.keep - written * along) * g[d] + on_target * target[d];
    }
  }
  if (rule.objective != kDec) return;  // elsewhere the target is v itself
  for (int64_t i = 0; i < rule.n_slots; ++i) {
    gradient.k[i] -= Dot(slots + i * dim, gradient.v, dim);
    Add(-token.k[i], gradient.v, dim, slot_gradient + i * dim);
  }
}

// Arrays of n_heads heads of all sequences: q, k [n_heads, n_tokens, n_slots], v [n_heads,
// n_tokens, dim], rate, keep [n_heads, n_tokens].
template <class A>
struct Inputs {
  const A *q, *k, *v, *rate, *keep;
  int64_t n_tokens;

  Token<A> At(const Rule& rule, int64_t row) const {
    return {q + row * rule.n_slots, k + row * rule.n_slots, v + row * rule.dim, rate[row],
            keep[row]};
  }
};

// first [n_heads, n_slots, dim], the initial slots; y like v; kept [n_heads, segments, n_slots,
// dim], the slots before every kSegment tokens.
template <class A>
void Forward(const Rule& rule, const Inputs<A>& in, int64_t n_heads, const A* first, A* y,
             A* kept) {
  const int64_t size = rule.n_slots * rule.dim;
  std::vector<A> slots(size), next(size);
  Update<A> update(rule);
  for (int64_t h = 0; h < n_heads; ++h) {
    std::copy(first + h * size, first + (h + 1) * size, slots.begin());
    for (int64_t t = 0; t < in.n_tokens; ++t) {
      if (t % kSegment == 0) kept = std::copy(slots.begin(), slots.end(), kept);
      const int64_t row = h * in.n_tokens + t;
      const Token<A> token = in.At(rule, row);
      Advance(rule, token, slots.data(), update, next.data());
      A* out = y + row * rule.dim;
      std::fill(out, out + rule.dim, A(0));
      for (int64_t i = 0; i < rule.n_slots; ++i)
        Add(token.q[i], &next[i * rule.dim], rule.dim, out);
      slots.swap(next);
    }
  }
}

// Gradients are shaped like what they are of; first_gradient like Forward's first.
template <class A>
void Backward(const Rule& rule, const Inputs<A>& in, int64_t n_heads, const A* kept,
              const A* y_gradient, A* const* gradients, A* first_gradient) {
  const int64_t size = rule.n_slots * rule.dim, segments = (in.n_tokens + kSegment - 1) / kSegment;
  std::vector<A> slots((kSegment + 1) * size);
  std::vector<Update<A>> updates(kSegment, Update<A>(rule));
  for (int64_t h = 0; h < n_heads; ++h) {
    A* gradient = first_gradient + h * size;
    std::fill(gradient, gradient + size, A(0));
    for (int64_t s = segments - 1; s >= 0; --s) {
      const int64_t begin = s * kSegment, n = std::min(kSegment, in.n_tokens - begin);
      const int64_t first_row = h * in.n_tokens + begin;
      const A* before = kept + (h * segments + s) * size;
      std::copy(before, before + size, slots.begin());
      for (int64_t t = 0; t < n; ++t)
        Advance(rule, in.At(rule, first_row + t), &slots[t * size], updates[t],
                &slots[(t + 1) * size]);
      for (int64_t t = n - 1; t >= 0; --t) {
        const int64_t row = first_row + t, at = row * rule.n_slots;
        Retreat(rule, in.At(rule, row), &slots[t * size], &slots[(t + 1) * size], updates[t],
                y_gradient + row * rule.dim, gradient,
                {gradients[0] + at, gradients[1] + at, gradients[2] + row * rule.dim,
                 gradients[3] + row, gradients[4] + row});
      }
    }
  }
}

}  // namespace

#define OVQ_SLOTS(A, suffix)                                                                       \
  void slots_forward_##suffix(const A* q, const A* k, const A* v, const A* rate, const A* keep,    \
                              const A* first, int64_t n_heads, int64_t n_tokens, int64_t n_slots,  \
                              int64_t dim, int64_t objective, int64_t orthogonal, A* y, A* kept) { \
    Forward<A>({n_slots, dim, Objective(objective), orthogonal != 0},                              \
               {q, k, v, rate, keep, n_tokens}, n_heads, first, y, kept);                          \
  }                                                                                                \
  void slots_backward_##suffix(const A* q, const A* k, const A* v, const A* rate, const A* keep,   \
                               const A* kept, const A* y_gradient, int64_t n_heads,                \
                               int64_t n_tokens, int64_t n_slots, int64_t dim, int64_t objective,  \
                               int64_t orthogonal, A* q_gradient, A* k_gradient, A* v_gradient,    \
                               A* rate_gradient, A* keep_gradient, A* first_gradient) {            \
    A* const gradients[] = {q_gradient, k_gradient, v_gradient, rate_gradient, keep_gradient};     \
    Backward<A>({n_slots, dim, Objective(objective), orthogonal != 0},                             \
                {q, k, v, rate, keep, n_tokens}, n_heads, kept, y_gradient, gradients,             \
                first_gradient);                                                                   \
  }

extern "C" {

OVQ_SLOTS(float, float32)
OVQ_SLOTS(double, float64)

}  // extern "C"
