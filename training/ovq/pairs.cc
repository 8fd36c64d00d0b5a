// Merges one head's chunk under the closest-pair rule, like merge_pairs of closest_pair.py, whose
// operations on a few hundred rows each are too small for numpy.
//
// All numbers are double, as there.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

constexpr int64_t kVectorBytes = 64;
constexpr int kTileVectors = 2;

class Candidates {
 public:
  Candidates(double* rows, int64_t* counts, int64_t n, int64_t key_dim, int64_t dim, double weight,
             double merge_variance, int64_t* part_of)
      : rows_(rows),
        counts_(counts),
        part_of_(part_of),
        n_(n),
        key_dim_(key_dim),
        dim_(dim),
        stride_((n + kTile - 1) / kTile * kTile),
        value_scale_(std::sqrt(weight)),
        merge_variance_(merge_variance),
        variances_(stride_),
        points_(dim * stride_),
        alive_(n),
        distances_(n * stride_),
        closest_(n, kNone),
        nearest_(n) {
    for (int64_t i = 0; i < n; ++i) {
      part_of[i] = i;
      Place(i);
    }
  }

  // Adds rows first .. end - 1 as candidates that may merge with those added before.
  void Join(int64_t first, int64_t end) {
    int64_t i = first;
    for (; i + kRows <= end; i += kRows) Meet<kRows>(i, i + kRows);
    for (; i < end; ++i) Meet<1>(i, i);
    for (i = first; i < end; ++i) {
      alive_[i] = true;
      Renew(i);
    }
  }

  // Merges the closest pair: its mean replaces its lower row; of equally close pairs the lowest
  // rows merge.
  void MergeClosest() {
    int64_t j = -1;
    for (int64_t row = 0; row < n_; ++row) {
      if (!alive_[row] || closest_[row] == kNone) continue;
      if (j < 0 || closest_[row] < closest_[j] ||
          (closest_[row] == closest_[j] && nearest_[row] < nearest_[j]))
        j = row;
    }
    const int64_t i = nearest_[j];
    const double share =
        static_cast<double>(counts_[j]) / static_cast<double>(counts_[i] + counts_[j]);
    double *mean = rows_ + i * dim_, *other = rows_ + j * dim_;
    for (int64_t c = 0; c < dim_; ++c) mean[c] += share * (other[c] - mean[c]);
    counts_[i] += counts_[j];
    part_of_[j] = i;
    alive_[j] = false;
    Place(i);
    Meet<1>(i, n_);
    Renew(i);
    for (int64_t row = i + 1; row < n_; ++row)
      if (alive_[row]) MeetMean(row, i, j);
  }

 private:
  typedef double Lanes
      __attribute__((vector_size(kVectorBytes), aligned(sizeof(double)), may_alias));
  static constexpr int64_t kLanes = kVectorBytes / sizeof(double), kTile = kTileVectors * kLanes;
  static constexpr int kRows = 4;  // rows whose distances are computed together
  static constexpr double kLeastVariance = 1.0 / 16;
  static constexpr double kNone =
      std::numeric_limits<double>::max();  // marks a row that may merge with no row before it

  // Stores a row's point and what its variance adds to its distances; squared distances of points
  // are otherwise the rule's.
  void Place(int64_t i) {
    double variance = 1;
    for (int64_t c = 0; c < dim_; ++c) {
      const double x = rows_[i * dim_ + c];
      points_[c * stride_ + i] = x * (c < key_dim_ ? 1 : value_scale_);
      if (c < key_dim_) variance -= x * x;
    }
    variances_[i] = variance > kLeastVariance ? merge_variance_ * variance : 0;
  }

  // Computes the distances of `rows` rows from `first` on to the first n_others.
  template <int rows>
  void Meet(int64_t first, int64_t n_others) {
    for (int64_t begin = 0; begin < n_others; begin += kTile) {
      Lanes sums[rows][kTileVectors] = {};
      for (int64_t c = 0; c < dim_; ++c) {
        const double* channel = &points_[c * stride_];
        const Lanes* others = reinterpret_cast<const Lanes*>(channel + begin);
        for (int r = 0; r < rows; ++r)
          for (int v = 0; v < kTileVectors; ++v) {
            const Lanes difference = others[v] - channel[first + r];
            sums[r][v] += difference * difference;
          }
      }
      const Lanes* added = reinterpret_cast<const Lanes*>(&variances_[begin]);
      for (int r = 0; r < rows; ++r)
        for (int v = 0; v < kTileVectors; ++v)
          reinterpret_cast<Lanes*>(&distances_[(first + r) * stride_ + begin])[v] =
              sums[r][v] + (added[v] + variances_[first + r]);
    }
  }

  // Updates distances after row i became the mean of rows i and j; those to row i are computed in
  // its row of distances_.
  void MeetMean(int64_t row, int64_t i, int64_t j) {
    const double distance = distances_[row * stride_ + i] = distances_[i * stride_ + row];
    const bool lost = nearest_[row] == i || nearest_[row] == j;
    if (distance < closest_[row] || (distance == closest_[row] && (lost || i < nearest_[row]))) {
      closest_[row] = distance;
      nearest_[row] = i;
    } else if (lost) {
      Renew(row);
    }
  }

  // Finds the closest of the rows before row j; of equally close ones the lowest.
  void Renew(int64_t j) {
    closest_[j] = kNone;
    for (int64_t i = 0; i < j; ++i) {
      const double distance = distances_[j * stride_ + i];
      if (!alive_[i] || distance >= closest_[j]) continue;
      closest_[j] = distance;
      nearest_[j] = i;
    }
  }

  double* rows_;
  int64_t *counts_, *part_of_;
  const int64_t n_, key_dim_, dim_, stride_;
  const double value_scale_, merge_variance_;
  std::vector<double> variances_;  // [stride]
  std::vector<double> points_;     // [dim][stride], values multiplied by value_scale_
  std::vector<char> alive_;
  std::vector<double> distances_;  // [n][stride], distances of a row to those before it
  std::vector<double> closest_;
  std::vector<int64_t> nearest_;  // valid where closest_ is not kNone
};

}  // namespace

// Merges pairs in rows [n, dim], of which the first key_dim columns are the key, with counts [n].
// Rows from `first` to ends[o] have joined after token o of the chunk, and due[o] pairs have
// merged. part_of [n] receives the row that each row has merged into, itself if none.
extern "C" void merge_pairs_float64(double* rows, int64_t* counts, int64_t n, int64_t key_dim,
                                    int64_t dim, double weight, double merge_variance,
                                    int64_t first, const int64_t* ends, const int64_t* due,
                                    int64_t n_tokens, int64_t* part_of) {
  Candidates candidates(rows, counts, n, key_dim, dim, weight, merge_variance, part_of);
  int64_t done = 0, next = first;
  for (int64_t o = 0; o < n_tokens; ++o) {
    candidates.Join(next, ends[o]);
    next = std::max(next, ends[o]);
    for (; done < due[o]; ++done) candidates.MergeClosest();
  }
}
