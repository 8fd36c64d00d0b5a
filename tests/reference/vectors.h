// Vectors of doubles, in which references of several mixers compute.
#pragma once

#include <cstddef>
#include <vector>

namespace ovq::kernels {

using Vector = std::vector<double>;

// sum_i a_i b_i, for vectors of the same length.
inline double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace ovq::kernels
