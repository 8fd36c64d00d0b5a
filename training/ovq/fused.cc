// The decoder's elementwise operations, several in one pass over memory, forward and backward.
//
// T is the dtype of the matrix products, A that of sums and of the residual stream: bfloat16 or
// float with float in training, double with double in the tests, which compare with finite
// differences. All arrays are dense and row-major. fused.py has the shapes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Bfloat16 {
  uint16_t bits;
};

inline float Wide(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float Wide(float x) { return x; }
inline double Wide(double x) { return x; }

// Rounds to nearest, ties to even.
inline void Store(float value, Bfloat16* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  out->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void Store(float value, float* out) { *out = value; }
inline void Store(double value, double* out) { *out = value; }

// e^x to a few units in the last place, in vectorizable operations; at least e^-87.
inline float Exp(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2, in two parts
  float power = 1.0f / 720;
  for (const float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    power = power * r + term;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return power * scale;
}
inline double Exp(double x) { return std::exp(x); }

template <class T, class A>
void RmsNormForward(const A* x, const A* weight, int64_t n, int64_t dim, double eps, T* y,
                    A* scale) {
  for (int64_t i = 0; i < n; ++i, x += dim, y += dim) {
    A sum = 0;
    for (int64_t c = 0; c < dim; ++c) sum += x[c] * x[c];
    const A factor = scale[i] = 1 / std::sqrt(sum / static_cast<A>(dim) + static_cast<A>(eps));
    for (int64_t c = 0; c < dim; ++c) Store(x[c] * factor * weight[c], y + c);
  }
}

// Adds to weight_grad [dim].
template <class T, class A>
void RmsNormBackward(const T* grad, const A* x, const A* weight, const A* scale, int64_t n,
                     int64_t dim, A* x_grad, A* weight_grad) {
  for (int64_t i = 0; i < n; ++i, grad += dim, x += dim, x_grad += dim) {
    const A factor = scale[i];
    A dot = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const A normed = x[c] * factor, g = Wide(grad[c]);
      weight_grad[c] += g * normed;
      dot += g * weight[c] * normed;
    }
    dot /= static_cast<A>(dim);
    for (int64_t c = 0; c < dim; ++c) {
      x_grad[c] = factor * (Wide(grad[c]) * weight[c] - x[c] * factor * dot);
    }
  }
}

struct Heads {
  int64_t batch, n_tokens, n_heads, dim;
  int64_t stride;  // distance between the x rows of consecutive tokens
};

constexpr double kUnitNormEps = 1e-6;

// y = beta * x / |x|, rotated by the position's angle, from x [batch, n_tokens, heads, dim] to
// y [batch, heads, n_tokens, dim]. beta null: 1; cosines null: no rotation.
template <class T, class A>
void UnitHeadsForward(const Heads& s, const T* x, const A* beta, const A* cosines, const A* sines,
                      T* y) {
  const int64_t half = s.dim / 2;
  std::vector<A> unit(s.dim);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.n_heads; ++h) {
      for (int64_t t = 0; t < s.n_tokens; ++t, y += s.dim) {
        const T* in = x + (b * s.n_tokens + t) * s.stride + h * s.dim;
        A sum = 0;
        for (int64_t c = 0; c < s.dim; ++c) sum += Wide(in[c]) * Wide(in[c]);
        const A factor = (beta ? beta[h] : 1) / std::sqrt(sum + static_cast<A>(kUnitNormEps));
        A* u = unit.data();
        for (int64_t c = 0; c < s.dim; ++c) u[c] = Wide(in[c]) * factor;
        if (!cosines) {
          for (int64_t c = 0; c < s.dim; ++c) Store(u[c], y + c);
          continue;
        }
        const A *cosine = cosines + t * half, *sine = sines + t * half;
        for (int64_t c = 0; c < half; ++c) {
          Store(u[c] * cosine[c] - u[half + c] * sine[c], y + c);
          Store(u[half + c] * cosine[c] + u[c] * sine[c], y + half + c);
        }
      }
    }
  }
}

// x_grad has x's layout; adds to beta_grad [heads] if it is not null.
template <class T, class A>
void UnitHeadsBackward(const Heads& s, const T* grad, const T* x, const A* beta, const A* cosines,
                       const A* sines, T* x_grad, A* beta_grad) {
  const int64_t half = s.dim / 2;
  std::vector<A> turned(s.dim);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.n_heads; ++h) {
      A beta_sum = 0;
      for (int64_t t = 0; t < s.n_tokens; ++t, grad += s.dim) {
        const int64_t at = (b * s.n_tokens + t) * s.stride + h * s.dim;
        A* g = turned.data();
        if (cosines) {
          const A *cosine = cosines + t * half, *sine = sines + t * half;
          for (int64_t c = 0; c < half; ++c) {
            const A low = Wide(grad[c]), high = Wide(grad[half + c]);
            g[c] = low * cosine[c] + high * sine[c];
            g[half + c] = high * cosine[c] - low * sine[c];
          }
        } else {
          for (int64_t c = 0; c < s.dim; ++c) g[c] = Wide(grad[c]);
        }
        A sum = 0, dot = 0;
        for (int64_t c = 0; c < s.dim; ++c) {
          sum += Wide(x[at + c]) * Wide(x[at + c]);
          dot += Wide(x[at + c]) * g[c];
        }
        const A inverse = 1 / std::sqrt(sum + static_cast<A>(kUnitNormEps));
        const A factor = (beta ? beta[h] : 1) * inverse, along = dot * inverse * inverse;
        beta_sum += dot * inverse;
        for (int64_t c = 0; c < s.dim; ++c) {
          Store(factor * (g[c] - Wide(x[at + c]) * along), x_grad + at + c);
        }
      }
      if (beta_grad) beta_grad[h] += beta_sum;
    }
  }
}

// y_t = x_t + mix (x_(t-1) - x_t) for n sequences x [n_tokens, dim]; the first token stays as it
// is.
template <class T, class A>
void ShiftForward(const T* x, const A* mix, int64_t n, int64_t n_tokens, int64_t dim, T* y) {
  for (int64_t i = 0; i < n * n_tokens; ++i, x += dim, y += dim) {
    const T* before = i % n_tokens == 0 ? x : x - dim;
    for (int64_t c = 0; c < dim; ++c) {
      const A now = Wide(x[c]);
      Store(now + mix[c] * (Wide(before[c]) - now), y + c);
    }
  }
}

// Adds to mix_grad [dim].
template <class T, class A>
void ShiftBackward(const T* grad, const T* x, const A* mix, int64_t n, int64_t n_tokens,
                   int64_t dim, T* x_grad, A* mix_grad) {
  for (int64_t i = 0; i < n * n_tokens; ++i, grad += dim, x += dim, x_grad += dim) {
    const bool first = i % n_tokens == 0, last = (i + 1) % n_tokens == 0;
    const T* before = first ? x : x - dim;
    const T* later = last ? grad : grad + dim;
    const A from_now = first ? 0 : 1, from_later = last ? 0 : 1;
    for (int64_t c = 0; c < dim; ++c) {
      const A g = Wide(grad[c]);
      Store(g - from_now * mix[c] * g + from_later * mix[c] * Wide(later[c]), x_grad + c);
      mix_grad[c] += g * (Wide(before[c]) - Wide(x[c]));
    }
  }
}

// y = silu(gate) * up for rows of x [n, 2 * dim]: gate, then up.
template <class T, class A>
void GateForward(const T* x, int64_t n, int64_t dim, T* y) {
  for (int64_t i = 0; i < n; ++i, x += 2 * dim, y += dim) {
    for (int64_t c = 0; c < dim; ++c) {
      const A gate = Wide(x[c]);
      Store(gate / (1 + Exp(-gate)) * Wide(x[dim + c]), y + c);
    }
  }
}

template <class T, class A>
void GateBackward(const T* grad, const T* x, int64_t n, int64_t dim, T* x_grad) {
  std::vector<A> gate_grad(dim), up_grad(dim);  // the compiler sees that they don't overlap
  for (int64_t i = 0; i < n; ++i, grad += dim, x += 2 * dim, x_grad += 2 * dim) {
    for (int64_t c = 0; c < dim; ++c) {
      const A g = Wide(grad[c]), gate = Wide(x[c]), up = Wide(x[dim + c]);
      const A sigmoid = 1 / (1 + Exp(-gate));
      gate_grad[c] = g * up * sigmoid * (1 + gate * (1 - sigmoid));
      up_grad[c] = g * gate * sigmoid;
    }
    for (int64_t c = 0; c < dim; ++c) Store(gate_grad[c], x_grad + c);
    for (int64_t c = 0; c < dim; ++c) Store(up_grad[c], x_grad + dim + c);
  }
}

// For row r of each of the matrices x [n_matrices, n_rows, n_columns], in place: the softmax of its
// columns begins[r]..ends[r]-1 plus bias [n_matrices, n_columns] (null: 0), and 0 elsewhere.
template <class T, class A>
void SoftmaxForward(T* x, int64_t n_matrices, int64_t n_rows, int64_t n_columns,
                    const int32_t* begins, const int32_t* ends, const A* bias) {
  std::vector<A> row(n_columns);
  for (int64_t m = 0; m < n_matrices; ++m) {
    for (int64_t r = 0; r < n_rows; ++r, x += n_columns) {
      const int64_t begin = begins[r], end = ends[r];
      A* p = row.data();
      for (int64_t c = begin; c < end; ++c) p[c] = Wide(x[c]);
      if (bias) {
        for (int64_t c = begin; c < end; ++c) p[c] += bias[m * n_columns + c];
      }
      A most = p[begin], sum = 0;
      for (int64_t c = begin; c < end; ++c) most = std::max(most, p[c]);
      for (int64_t c = begin; c < end; ++c) sum += p[c] = Exp(p[c] - most);
      std::memset(x, 0, begin * sizeof(T));
      for (int64_t c = begin; c < end; ++c) Store(p[c] / sum, x + c);
      std::memset(x + end, 0, (n_columns - end) * sizeof(T));
    }
  }
}

// y is SoftmaxForward's result.
template <class T, class A>
void SoftmaxBackward(const T* grad, const T* y, int64_t n_matrices, int64_t n_rows,
                     int64_t n_columns, const int32_t* begins, const int32_t* ends, T* x_grad) {
  for (int64_t m = 0; m < n_matrices; ++m) {
    for (int64_t r = 0; r < n_rows; ++r, grad += n_columns, y += n_columns, x_grad += n_columns) {
      const int64_t begin = begins[r], end = ends[r];
      A dot = 0;
      for (int64_t c = begin; c < end; ++c) dot += Wide(grad[c]) * Wide(y[c]);
      std::memset(x_grad, 0, begin * sizeof(T));
      for (int64_t c = begin; c < end; ++c) {
        Store(Wide(y[c]) * (Wide(grad[c]) - dot), x_grad + c);
      }
      std::memset(x_grad + end, 0, (n_columns - end) * sizeof(T));
    }
  }
}

}  // namespace

// One C function for each operation and dtype: rms_norm_forward_bfloat16, ...
#define EXPORT(T, A, suffix)                                                                      \
  extern "C" {                                                                                    \
  void rms_norm_forward_##suffix(const A* x, const A* weight, int64_t n, int64_t dim, double eps, \
                                 T* y, A* scale) {                                                \
    RmsNormForward<T, A>(x, weight, n, dim, eps, y, scale);                                       \
  }                                                                                               \
  void rms_norm_backward_##suffix(const T* grad, const A* x, const A* weight, const A* scale,     \
                                  int64_t n, int64_t dim, A* x_grad, A* weight_grad) {            \
    RmsNormBackward<T, A>(grad, x, weight, scale, n, dim, x_grad, weight_grad);                   \
  }                                                                                               \
  void unit_heads_forward_##suffix(const int64_t* sizes, const T* x, const A* beta,               \
                                   const A* cosines, const A* sines, T* y) {                      \
    const Heads heads = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};                       \
    UnitHeadsForward<T, A>(heads, x, beta, cosines, sines, y);                                    \
  }                                                                                               \
  void unit_heads_backward_##suffix(const int64_t* sizes, const T* grad, const T* x,              \
                                    const A* beta, const A* cosines, const A* sines, T* x_grad,   \
                                    A* beta_grad) {                                               \
    const Heads heads = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};                       \
    UnitHeadsBackward<T, A>(heads, grad, x, beta, cosines, sines, x_grad, beta_grad);             \
  }                                                                                               \
  void shift_forward_##suffix(const T* x, const A* mix, int64_t n, int64_t n_tokens, int64_t dim, \
                              T* y) {                                                             \
    ShiftForward<T, A>(x, mix, n, n_tokens, dim, y);                                              \
  }                                                                                               \
  void shift_backward_##suffix(const T* grad, const T* x, const A* mix, int64_t n,                \
                               int64_t n_tokens, int64_t dim, T* x_grad, A* mix_grad) {           \
    ShiftBackward<T, A>(grad, x, mix, n, n_tokens, dim, x_grad, mix_grad);                        \
  }                                                                                               \
  void gate_forward_##suffix(const T* x, int64_t n, int64_t dim, T* y) {                          \
    GateForward<T, A>(x, n, dim, y);                                                              \
  }                                                                                               \
  void gate_backward_##suffix(const T* grad, const T* x, int64_t n, int64_t dim, T* x_grad) {     \
    GateBackward<T, A>(grad, x, n, dim, x_grad);                                                  \
  }                                                                                               \
  void softmax_forward_##suffix(T* x, int64_t n_matrices, int64_t n_rows, int64_t n_columns,      \
                                const int32_t* begins, const int32_t* ends, const A* bias) {      \
    SoftmaxForward<T, A>(x, n_matrices, n_rows, n_columns, begins, ends, bias);                   \
  }                                                                                               \
  void softmax_backward_##suffix(const T* grad, const T* y, int64_t n_matrices, int64_t n_rows,   \
                                 int64_t n_columns, const int32_t* begins, const int32_t* ends,   \
                                 T* x_grad) {                                                     \
    SoftmaxBackward<T, A>(grad, y, n_matrices, n_rows, n_columns, begins, ends, x_grad);          \
  }                                                                                               \
  }

EXPORT(Bfloat16, float, bfloat16)
EXPORT(float, float, float32)
EXPORT(double, double, float64)
