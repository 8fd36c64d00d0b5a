// The delta rule's part of a chunk's update: v_i -= p_i for the pending values, in place, before
// they are merged. p_i is the attention output of key i over the dictionary.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

// One key of the chunk, processed by a warp, and its attention so far.
struct WarpQuery {
  SharedPtr<float> query;    // [head_dim]
  SharedPtr<float> weights;  // [64], for one block
  SharedPtr<float> acc;      // [value_head_dim]
  float max = kLowestScore, sum = 0;
};
constexpr size_t SharedFloats(int head_dim, int value_head_dim) {
  return static_cast<size_t>(head_dim) + kBlockSlots + static_cast<size_t>(value_head_dim);
}

// Turns scores of a block into weights times the scales of their values; returns the scale of the
// output so far. A score is one chain over the channels; a lane has the slots l and l + 32, whose
// sums are added 16, 8, 4, 2 and 1 lanes apart.
template <class T>
__device__ float WeighBlock(const AttentionShape& shape, const T* keys, const T* values,
                            const float* bias, int32_t live, WarpQuery& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[2], new_max = at.max;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int slot = lane + 32 * j;
    float sum = 0;
    for (int32_t c = 0; c < shape.head_dim; ++c) {
      const float x = at.query[c];
      sum = fmaf(x, ToFloat(keys[c * kBlockSlots + slot]), sum);
    }
    sum *= KeyRow(keys, shape.head_dim, slot).scale();
    score[j] = slot >= live ? kLowestScore : bias == nullptr ? sum : sum + bias[slot];
    new_max = fmaxf(new_max, score[j]);
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    new_max = fmaxf(new_max, __shfl_xor_sync(kWholeWarp, new_max, apart));
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int slot = lane + 32 * j;
    const float weight = slot < live ? expf(score[j] - new_max) : 0.0f;
    at.weights[slot] = weight * ValueRow(values, ValueStride(shape.value_head_dim), slot).scale();
    sum += weight;
  }
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  const float scale = expf(at.max - new_max);
  at.sum = fmaf(at.sum, scale, sum);
  at.max = new_max;
  return scale;
}

// Subtracts the attention output of the warp's query from a slot's value.
template <class T>
__device__ void SubtractFrom(const SlotRow<T>& value, int32_t dv, const WarpQuery& at) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const float scale = value.scale();
  uint32_t largest = 0;
  for (int32_t c = lane; c < dv; c += 32) {
    const float acc = at.acc[c], left = ToFloat(value.data[c]) * scale - acc / at.sum;
    at.acc[c] = left;
    largest = MagnitudeBits(left) > largest ? MagnitudeBits(left) : largest;
  }
  for (int apart = 16; Slots<T>::kScaled && apart > 0; apart /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, largest, apart);
    largest = other > largest ? other : largest;
  }
  const uint8_t exponent = Slots<T>::Exponent(largest);
  const float inverse = InverseExponentScale(exponent);
  for (int32_t c = lane; c < dv; c += 32) {
    const float left = at.acc[c];
    value.data[c] = NearestElement<T>(left, inverse);
  }
  if (lane == 0) value.SetExponent(exponent);
}

// Attends with key i of the chunk, times the delta rule's scale, over the old slots and subtracts
// the result from its pending value.
template <class T>
__device__ void SubtractPrediction(const AttentionBlocks& blocks, const FullChunk& head, int32_t i,
                                   WarpQuery at) {
  const int32_t d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, value_stride = ValueStride(dv);
  const auto block_of = [&](const BlockPlaces& places, int64_t b) {
    return places.place.At<T>(head.session, head.kv_head, b);
  };
  const SlotRow key = KeyRow(block_of(blocks.recent_keys, i / kBlockSlots), d, i % kBlockSlots);
  const float scale = key.scale() * blocks.delta_scale[head.kv_head];
  for (int32_t c = lane; c < d; c += 32) at.query[c] = ToFloat(key.data[c * kBlockSlots]) * scale;
  for (int32_t c = lane; c < dv; c += 32) at.acc[c] = 0.0f;
  __syncwarp();
  for (int32_t b = 0; b < NumBlocks(head.n_old); ++b) {
    const int32_t live = Smaller(head.n_old - b * kBlockSlots, kBlockSlots);
    const float* bias = blocks.has_bias() ? blocks.dictionary_bias.place.At<const float>(
                                                head.session, head.kv_head, b)
                                          : nullptr;
    const T* values = block_of(blocks.dictionary_values, b);
    const float keep =
        WeighBlock<T>(blocks.shape, block_of(blocks.dictionary_keys, b), values, bias, live, at);
    __syncwarp();
    for (int32_t c = lane; c < dv; c += 32) {
      const float before = at.acc[c];
      float acc = before * keep;
      for (int32_t slot = 0; slot < live; ++slot) {
        const float weight = at.weights[slot];
        acc = fmaf(weight, ToFloat(values[slot * value_stride + c]), acc);
      }
      at.acc[c] = acc;
    }
    __syncwarp();
  }
  SubtractFrom(
      ValueRow(block_of(blocks.recent_values, i / kBlockSlots), value_stride, i % kBlockSlots), dv,
      at);
}

// Corrects the pending values of the chunks that this wave fills. Precision: float32 throughout,
// values rounded to T. Launch: one warp per key; grid (sequences, kv heads, ceil(chunk_len /
// kWarps)). Bytes: the head's live slots once per key, 64 (head_dim + value_head_dim) elements a
// block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    SubtractPredictions(const __grid_constant__ AttentionBlocks blocks,
                        const __grid_constant__ DeviceWave wave) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t i = static_cast<int32_t>(blockIdx.z) * kWarps + warp;
  FullChunk head;
  if (i >= blocks.wave_span || !FindFullChunk(blocks, wave, head) || head.n_old == 0) return;
  const int32_t d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const SharedPtr<float> shared =
      DynamicShared<float>(static_cast<uint32_t>(warp * SharedFloats(d, dv) * sizeof(float)));
  SubtractPrediction<T>(blocks, head, i, {shared, shared + d, shared + (d + kBlockSlots)});
}

}  // namespace
}  // namespace cuda

void SubtractPredictionsCuda(DeviceContext& context, const AttentionArgs& args, int wave) {
  const AttentionBlocks& blocks = args.blocks;
  const size_t shared_bytes =
      cuda::kWarps * cuda::SharedFloats(blocks.shape.head_dim, blocks.shape.value_head_dim) *
      sizeof(float);
  const auto kernel =
      VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return cuda::SubtractPredictions<T>; });
  cuda::Launch(context, kernel,
               cuda::HeadGrid(args, (blocks.wave_span + cuda::kWarps - 1) / cuda::kWarps),
               cuda::kThreads, shared_bytes, blocks, DeviceWave{args.seqs.device, wave});
}

}  // namespace ovq::kernels
