// Chooses the rows that the tokens of a leaving chunk become or merge into: one thread block per
// head of a session, one thread per token, tokens' scores in shared memory. A score is one chain of
// sums over the channels, so equal keys and rows have equal scores.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/kvm/fold.h"

namespace ovq::kernels::cuda {

inline constexpr int kFoldThreads = 256;
// Rows that are scored together, and how many of their channels are in shared memory at a time.
inline constexpr int kTileSlots = 16;
inline constexpr int kTileChannels = 64;

// One element per token of the chunk.
struct TokenArrays {
  SharedPtr<float> mean, scale;  // statistics of its key's LayerNorm
  SharedPtr<float> score;        // score of the best row to merge into so far
  SharedPtr<int32_t> row;        // that row
  SharedPtr<float> nearness;     // highest score of any row
  SharedPtr<int32_t> appended;   // row that the token becomes, or -1
  SharedPtr<int32_t>
      next;  // shares nearness' memory: the next token merged into the same row, or -1
  SharedPtr<int32_t>
      first;  // shares score's memory: whether the token is the first one merged there
};
// The rows of a tile.
struct TileArrays {
  SharedPtr<float> mean, scale;  // [kTileSlots]
  SharedPtr<float> keys;         // [kTileChannels][kTileSlots]
};

constexpr size_t ChooseSharedBytes(int32_t n_tokens) {
  return (static_cast<size_t>(n_tokens) * 6 + kTileSlots * (2 + kTileChannels)) * sizeof(float);
}

// Shared memory that every supported GPU allows a thread block.
static_assert(ChooseSharedBytes(kMaxKvmCudaChunkLen) <= size_t{99} << 10);

template <class T>
struct Choice {
  KvmFold<T> at;
  KvmWeights weights;
  TokenArrays tokens;
  TileArrays tile;

  __device__ Choice(const KvmFold<T>& fold, const KvmWeights& weights)
      : at(fold), weights(weights) {
    const auto bytes = static_cast<uint32_t>(fold.n_tokens()) * 4;
    tokens = {.mean = DynamicShared<float>(0),
              .scale = DynamicShared<float>(bytes),
              .score = DynamicShared<float>(2 * bytes),
              .row = DynamicShared<int32_t>(3 * bytes),
              .nearness = DynamicShared<float>(4 * bytes),
              .appended = DynamicShared<int32_t>(5 * bytes),
              .next = DynamicShared<int32_t>(4 * bytes),
              .first = DynamicShared<int32_t>(2 * bytes)};
    tile = {.mean = DynamicShared<float>(6 * bytes),
            .scale = DynamicShared<float>(6 * bytes + kTileSlots * 4),
            .keys = DynamicShared<float>(6 * bytes + 2 * kTileSlots * 4)};
  }

  __device__ float Normed(float x, float mean, float scale, int c) const {
    return (x - mean) * scale * weights.norm_weight[c] + weights.norm_bias[c];
  }
  // LayerNorm statistics of x(0), x(1), ...
  template <class Fn>
  __device__ void MeanAndScale(Fn&& x, float& mean, float& scale) const {
    const int d = at.d();
    float sum = 0, squares = 0;
    for (int c = 0; c < d; ++c) sum += x(c);
    mean = sum / static_cast<float>(d);
    for (int c = 0; c < d; ++c) {
      const float apart = x(c) - mean;
      squares += apart * apart;
    }
    scale = 1 / sqrtf(squares / static_cast<float>(d) + kKvmNormEps);
  }
  __device__ void SlotNorm(int32_t row, float& mean, float& scale) const {
    const T* sums = at.Key(at.parts.key_sums, row);
    MeanAndScale([&](int c) { return ToFloat(sums[c * kBlockSlots]); }, mean, scale);
  }

  // Channel c of a token's key without its temperature, masked channels zero; before and after the
  // norm.
  __device__ float PlainKey(const T* key, int c) const {
    return c < at.config.masked_dims
               ? 0.0f
               : ToFloat(key[c * kBlockSlots]) / weights.front_temps[at.chunk.kv_head];
  }
  __device__ float Key(int32_t i, int c) const {
    const float mean = tokens.mean[i], scale = tokens.scale[i];
    return Normed(PlainKey(at.WindowKey(i), c), mean, scale, c);
  }

  __device__ void PrepareKeys() const {
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const T* key = at.WindowKey(i);
      float mean, scale;
      MeanAndScale([&](int c) { return PlainKey(key, c); }, mean, scale);
      tokens.mean[i] = mean;
      tokens.scale[i] = scale;
    }
  }

  __device__ void ForgetScores() const {
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      tokens.score[i] = -INFINITY;
      tokens.row[i] = at.sinks();
    }
  }

  // Loads channels [begin, begin + kTileChannels) of the normalised keys of a tile's rows.
  __device__ void LoadTile(int32_t first, int32_t n_slots, int begin) const {
    for (int item = threadIdx.x; item < kTileSlots * kTileChannels; item += kFoldThreads) {
      const int r = item % kTileSlots, c = begin + item / kTileSlots;
      float key = 0;
      if (r < n_slots && c < at.d()) {
        const float mean = tile.mean[r], scale = tile.scale[r];
        const T sum = at.Key(at.parts.key_sums, first + r)[c * kBlockSlots];
        key = Normed(ToFloat(sum), mean, scale, c);
      }
      tile.keys[item] = key;
    }
  }

  // Scores rows [begin, end): a better score replaces a token's score and row; ties to the lowest
  // row. All threads must call it together.
  __device__ void Probe(int32_t begin, int32_t end) const {
    for (int32_t first = begin; first < end; first += kTileSlots) {
      const int32_t n_slots = end - first < kTileSlots ? end - first : kTileSlots;
      if (static_cast<int32_t>(threadIdx.x) < n_slots) {
        float mean, scale;
        SlotNorm(first + static_cast<int32_t>(threadIdx.x), mean, scale);
        tile.mean[threadIdx.x] = mean;
        tile.scale[threadIdx.x] = scale;
      }
      for (int32_t group = 0; group < at.n_tokens(); group += kFoldThreads) {
        ProbeTile(first, n_slots, group + static_cast<int32_t>(threadIdx.x));
      }
      __syncthreads();
    }
  }
  __device__ void ProbeTile(int32_t first, int32_t n_slots, int32_t i) const {
    const bool exists = i < at.n_tokens();
    float sum[kTileSlots] = {};
    for (int from = 0; from < at.d(); from += kTileChannels) {
      __syncthreads();
      LoadTile(first, n_slots, from);
      __syncthreads();
      const int to = at.d() - from < kTileChannels ? at.d() - from : kTileChannels;
      for (int c = 0; c < to && exists; ++c) {
        const float x = Key(i, from + c);
#pragma unroll
        for (int r = 0; r < kTileSlots; ++r) {
          const float key = tile.keys[c * kTileSlots + r];
          sum[r] = fmaf(x, key, sum[r]);
        }
      }
    }
    if (!exists) return;
    float best = tokens.score[i];
    int32_t row = tokens.row[i];
#pragma unroll
    for (int r = 0; r < kTileSlots; ++r) {
      if (r >= n_slots || !(sum[r] > best)) continue;
      best = sum[r];
      row = first + r;
    }
    tokens.score[i] = best;
    tokens.row[i] = row;
  }

  // Fills tokens.appended: rows for the tokens that are least similar to any row, ties to the lower
  // token, in order of position; the first tokens where there is no choice.
  __device__ void Select() const {
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      int32_t rank = i;
      if (at.selects()) {
        const float mine = tokens.nearness[i];
        rank = 0;
        for (int32_t j = 0; j < at.n_tokens(); ++j) {
          const float other = tokens.nearness[j];
          rank += other < mine || (other == mine && j < i) ? 1 : 0;
        }
      }
      tokens.appended[i] = rank < at.n_new() ? 0 : -1;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    int32_t row = at.chunk.n_old;
    for (int32_t i = 0; i < at.n_tokens(); ++i) {
      const int32_t becomes_slot = tokens.appended[i];
      if (becomes_slot >= 0) tokens.appended[i] = row++;
    }
  }

  // Chooses the tokens that become rows, and every token's best old row.
  __device__ void ChooseAppended() const {
    PrepareKeys();
    ForgetScores();
    __syncthreads();
    if (at.selects()) {
      Probe(0, at.sinks());
      for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
        const float of_sinks = tokens.score[i];
        tokens.nearness[i] = of_sinks;
      }
      ForgetScores();
      __syncthreads();
    }
    Probe(at.sinks(), at.chunk.n_old);
    for (int32_t i = threadIdx.x; at.selects() && i < at.n_tokens(); i += kFoldThreads) {
      const float score = tokens.score[i], of_sinks = tokens.nearness[i];
      tokens.nearness[i] = fmaxf(score, of_sinks);
    }
    __syncthreads();
    Select();
    __syncthreads();
  }

  // Chooses the best of all rows for the tokens that are not appended, and links them by row.
  __device__ void ChooseMerges() const {
    Probe(at.chunk.n_old > at.sinks() ? at.chunk.n_old : at.sinks(), at.chunk.n_next);
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const int32_t mine = tokens.row[i], becomes = tokens.appended[i];
      int32_t next = -1, first = becomes < 0 ? 1 : 0;
      for (int32_t j = at.n_tokens() - 1; j >= 0; --j) {
        const int32_t other = tokens.row[j], other_becomes = tokens.appended[j];
        if (other != mine || other_becomes >= 0) continue;
        if (j > i) next = j;
        if (j < i) first = 0;
      }
      tokens.next[i] = next;
      tokens.first[i] = first;
    }
    __syncthreads();
  }
};

}  // namespace ovq::kernels::cuda
