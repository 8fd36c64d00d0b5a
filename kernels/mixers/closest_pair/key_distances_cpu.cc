// Distances of several keys to the keys of all candidates, in one pass over the blocks.
#include <cstddef>

#include "kernels/mixers/closest_pair/nearest.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/closest_pair/key_distances_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/mixers/common/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kRowTile = 4;
// The accumulators must fit the register file: 32 registers with 64-byte vectors, else 16.
constexpr int kVectors = kLanes == 16 ? 4 : 2;

// Distances of kRows keys to one block.
template <int kRows, class T>
HWY_INLINE void TileKeyDistances(const float* const* rows, const T* keys, int head_dim,
                                 float* const* distances, size_t at) {
  const D d;
  for (int s = 0; s < kBlockSlots; s += kVectors * kLanes) {
    V sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    }
    for (int i = 0; i < head_dim; ++i) {
      const T* HWY_RESTRICT channel = keys + static_cast<size_t>(i) * kBlockSlots + s;
      V key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = LoadWide(d, channel + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, rows[r][i]);
        for (int v = 0; v < kVectors; ++v) {
          const V apart = hn::Sub(x, key[v]);
          sum[r][v] = hn::MulAdd(apart, apart, sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        hn::StoreU(sum[r][v], d, distances[r] + at + s + v * kLanes);
    }
  }
}

template <class T>
HWY_INLINE void BlockKeyDistances(const KeyDistances& batch, const T* keys, size_t at) {
  const auto n = static_cast<int>(batch.keys.size());
  const float* const* rows = batch.keys.data();
  float* const* to = batch.distances.data();
  int r = 0;
  for (; r + kRowTile <= n; r += kRowTile) {
    TileKeyDistances<kRowTile>(rows + r, keys, batch.head_dim, to + r, at);
  }
  for (; r < n; ++r) TileKeyDistances<1>(rows + r, keys, batch.head_dim, to + r, at);
}

// Converts a block to float: every slot's channels times its scale.
template <class T>
HWY_INLINE void WidenBlock(const T* keys, int head_dim, float* wide) {
  const D d;
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    [[maybe_unused]] V scale;
    if constexpr (Slots<T>::kScaled) scale = LoadScales(d, keys, head_dim, s);
    for (auto i = static_cast<size_t>(s); i < static_cast<size_t>(head_dim) * kBlockSlots;
         i += kBlockSlots) {
      V channel = LoadWide(d, keys + i);
      if constexpr (Slots<T>::kScaled) channel = hn::Mul(channel, scale);
      hn::StoreU(channel, d, wide + i);
    }
  }
}

void FillKeyDistances(const KeyDistances& batch) {
  VisitSlots(batch.dtype, [&]<class T>(Slots<T>) HWY_ATTR {
    const bool widens =
        Slots<T>::kScaled || (sizeof(T) < sizeof(float) && batch.keys.size() > kRowTile);
    for (size_t b = 0; b < batch.blocks.size(); ++b) {
      const T* keys = static_cast<const T*>(batch.blocks[b].keys);
      if (widens) {
        WidenBlock(keys, batch.head_dim, batch.wide);
        BlockKeyDistances(batch, static_cast<const float*>(batch.wide), b * kBlockSlots);
      } else {
        BlockKeyDistances(batch, keys, b * kBlockSlots);
      }
    }
  });
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {

HWY_EXPORT(FillKeyDistances);

void KeyDistancesCpu(const KeyDistances& batch) { HWY_DYNAMIC_DISPATCH(FillKeyDistances)(batch); }

}  // namespace ovq::kernels
#endif  // HWY_ONCE
