// MesaNet's conjugate gradient iteration, a few rows at a time: their vectors and matrices stay in
// the processor's nearest caches, while PyTorch's operations on all chunks pass over memory.
//
// A is float in training, double in the tests, which compare with mesa_net.py's own iteration. All
// arrays are dense and row-major; lengths and dimensions are multiples of a vector's lanes.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kVectorBytes = 64;
constexpr int kRows = 4;  // rows of a product that are accumulated together in registers

template <class A>
struct Vector {
  typedef A Lanes __attribute__((vector_size(kVectorBytes), aligned(sizeof(A)), may_alias));
  static constexpr int64_t kLanes = kVectorBytes / sizeof(A);
};

// out [kRows, one vector of columns times n_vectors] = a [kRows, depth] b [depth, ...].
template <class A, int n_vectors>
void Tile(const A* a, int64_t a_stride, const A* b, int64_t b_stride, int64_t depth, A* out,
          int64_t out_stride) {
  using Lanes = typename Vector<A>::Lanes;
  Lanes sums[kRows][n_vectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const Lanes* row = reinterpret_cast<const Lanes*>(b + k * b_stride);
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < n_vectors; ++v) sums[i][v] += a[i * a_stride + k] * row[v];
  }
  for (int i = 0; i < kRows; ++i)
    for (int v = 0; v < n_vectors; ++v)
      reinterpret_cast<Lanes*>(out + i * out_stride)[v] = sums[i][v];
}

// Computes kRows rows of a product with n_columns, a multiple of the lanes.
template <class A>
void Rows(const A* a, int64_t a_stride, const A* b, int64_t b_stride, int64_t depth,
          int64_t n_columns, A* out, int64_t out_stride) {
  constexpr int64_t kLanes = Vector<A>::kLanes;
  int64_t c = 0;
  for (; c + 4 * kLanes <= n_columns; c += 4 * kLanes)
    Tile<A, 4>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
  for (; c < n_columns; c += kLanes)
    Tile<A, 1>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
}

// A chunk's operands, those of mesa_net.py's key_products, and space for its products.
template <class A>
struct Chunk {
  int64_t len, dim;
  const A *keys, *weights, *state, *grown, *ridge;
  std::vector<A> transposed, scores, inside;

  Chunk(int64_t len, int64_t dim)
      : len(len), dim(dim), transposed(dim * len), scores(len * len), inside(kRows * dim) {}

  void Take(const A* const* operands, int64_t c) {
    keys = operands[0] + c * len * dim;
    weights = operands[1] + c * len * len;
    state = operands[2] + c * dim * dim;
    grown = operands[3] + c * len;
    ridge = operands[4] + c * dim;
    for (int64_t j = 0; j < len; ++j)
      for (int64_t d = 0; d < dim; ++d) transposed[d * len + j] = keys[j * dim + d];
  }

  // For kRows rows from `first` on: products = p times each row's own matrix. Keys after the last
  // of these rows have no weight.
  void Multiply(const A* p, int64_t first, A* products) {
    constexpr int64_t kLanes = Vector<A>::kLanes;
    const int64_t n_keys = first + kRows;
    const int64_t n_columns = std::min(len, (n_keys + kLanes - 1) / kLanes * kLanes);
    Rows(p, dim, state, dim, dim, dim, products, dim);
    Rows(p, dim, transposed.data(), len, dim, n_columns, scores.data(), len);
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < n_keys; ++j) scores[i * len + j] *= weights[(first + i) * len + j];
    Rows(scores.data(), len, keys, dim, n_keys, dim, inside.data(), dim);
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t d = 0; d < dim; ++d)
        products[i * dim + d] = grown[first + i] * products[i * dim + d] + inside[i * dim + d] +
                                ridge[d] * p[i * dim + d];
  }
};

template <class A>
A Dot(const A* x, const A* y, int64_t n) {
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Solves kRows rows from `first` on, with n_steps iterations from zero; rows do not depend on each
// other.
template <class A>
void SolveRows(Chunk<A>& chunk, const A* q, int64_t first, int64_t n_steps, A damping, A* u) {
  const int64_t dim = chunk.dim, n = kRows * dim;
  std::vector<A> r(q, q + n), p(q, q + n), products(n);
  A errors[kRows];
  for (int i = 0; i < kRows; ++i) errors[i] = Dot(q + i * dim, q + i * dim, dim);
  std::fill(u, u + n, A(0));
  for (int64_t step = 0; step < n_steps; ++step) {
    chunk.Multiply(p.data(), first, products.data());
    for (int i = 0; i < kRows; ++i) {
      A *row = &p[i * dim], *left = &r[i * dim], *product = &products[i * dim];
      const A rate = errors[i] / (Dot(row, product, dim) + damping);
      for (int64_t d = 0; d < dim; ++d) u[i * dim + d] += rate * row[d];
      for (int64_t d = 0; d < dim; ++d) left[d] -= rate * product[d];
      const A error = Dot(left, left, dim), keep = error / (errors[i] + damping);
      for (int64_t d = 0; d < dim; ++d) row[d] = left[d] + keep * row[d];
      errors[i] = error;
    }
  }
}

template <class A>
void MesaSolve(const A* q, const A* const* operands, int64_t n_chunks, int64_t len, int64_t dim,
               int64_t n_steps, double damping, A* u) {
  Chunk<A> chunk(len, dim);
  for (int64_t c = 0; c < n_chunks; ++c) {
    chunk.Take(operands, c);
    for (int64_t i = 0; i < len; i += kRows) {
      const int64_t begin = (c * len + i) * dim;
      SolveRows(chunk, q + begin, i, n_steps, static_cast<A>(damping), u + begin);
    }
  }
}

}  // namespace

extern "C" {

// Shapes as key_products of mesa_net.py: q and u [n_chunks, len, dim].
void mesa_solve_float32(const float* q, const float* keys, const float* weights,
                        const float* states, const float* grown, const float* ridge,
                        int64_t n_chunks, int64_t len, int64_t dim, int64_t n_steps, double damping,
                        float* u) {
  const float* operands[] = {keys, weights, states, grown, ridge};
  MesaSolve(q, operands, n_chunks, len, dim, n_steps, damping, u);
}

void mesa_solve_float64(const double* q, const double* keys, const double* weights,
                        const double* states, const double* grown, const double* ridge,
                        int64_t n_chunks, int64_t len, int64_t dim, int64_t n_steps, double damping,
                        double* u) {
  const double* operands[] = {keys, weights, states, grown, ridge};
  MesaSolve(q, operands, n_chunks, len, dim, n_steps, damping, u);
}

}  // extern "C"
