// Matrix recurrence (matrix_state.h) on CUDA. A thread block keeps 32 columns of a head's S of one
// sequence in registers over all its tokens: warp w has kRows keys, lane c has column c. S^T x is
// summed over the keys of a warp first, then over the warps.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/cuda/sequence_parts.h"
#include "kernels/mixers/recurrent/matrix_state.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kStateColumns;
// Stages of keys and queries: the current token's, the next one's, whose S^T k is summed in the
// same pass, and the one after it, which is being loaded.
constexpr int kStages = 3;

// Shared memory: keys and queries of the stages [kStages][2][kPadded] float, with decays of keys
// [kStages][4][kPadded]: keys, queries, decays, and keys times decays, by which S is read before it
// decays. Then the warps' partial sums [2][2][kWarps][32] float of S^T k and of y. Even and odd
// tokens use different halves, so one barrier a token is enough.
template <int kRows, bool kDecaysKeys>
struct Shared {
  static constexpr int kPadded = kRows * kWarps;
  static constexpr int kVectors = kDecaysKeys ? 4 : 2;
  static constexpr uint32_t kSums = kStages * kVectors * kPadded * sizeof(float);
  static constexpr uint32_t kBytes = kSums + 2 * 2 * kThreads * sizeof(float);

  __device__ static SharedPtr<float> Keys(int stage) {
    return DynamicShared<float>(0) + stage * kVectors * kPadded;
  }
  __device__ static SharedPtr<float> Queries(int stage) { return Keys(stage) + kPadded; }
  __device__ static SharedPtr<float> Decays(int stage) { return Keys(stage) + 2 * kPadded; }
  __device__ static SharedPtr<float> ReadingKeys(int stage) {
    return Keys(stage) + (kDecaysKeys ? 3 * kPadded : 0);
  }
  __device__ static SharedPtr<float> OldValues(int parity) {
    return DynamicShared<float>(kSums) + parity * 2 * kThreads;
  }
  __device__ static SharedPtr<float> Outputs(int parity) { return OldValues(parity) + kThreads; }
};

// The part of a thread's work that is the same for all tokens.
struct Place {
  int head;
  int64_t key;     // offset of the head's first key within a token
  int64_t column;  // offset of the column within a token's values
  bool inside;     // false: the column is padding

  __device__ Place(const MatrixStates& states, int64_t head_block) {
    const int64_t blocks = StateColumnBlocks(states.value_dim);
    const int64_t in_head = head_block % blocks * kStateColumns + threadIdx.x % kStateColumns;
    head = static_cast<int>(head_block / blocks);
    key = int64_t{states.key_head(head)} * states.key_dim;
    column = int64_t{head} * states.value_dim + in_head;
    inside = in_head < states.value_dim;
  }
};

// Sum over the warps for this lane's column.
__device__ float SumOverWarps(SharedPtr<float> sums) {
  const int lane = static_cast<int>(threadIdx.x) % kStateColumns;
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    const float sum = sums[warp * kStateColumns + lane];
    total += sum;
  }
  return total;
}

template <int kRows, bool kDecaysKeys>
__device__ void Stage(const MatrixStates& states, const Place& place, int64_t token, int stage) {
  using Memory = Shared<kRows, kDecaysKeys>;
  const int64_t at = token * states.stride + place.key;
  for (int i = static_cast<int>(threadIdx.x); i < Memory::kPadded; i += kThreads) {
    const bool inside = i < states.key_dim;
    const float key = inside ? states.k[at + i] : 0.0f;
    Memory::Keys(stage)[i] = key;
    Memory::Queries(stage)[i] = inside ? states.q[at + i] : 0.0f;
    if constexpr (kDecaysKeys) {
      const int64_t gate = token * states.n_heads + place.head;
      const float decay = inside ? states.decay[gate * states.key_dim + i] : 0.0f;
      Memory::Decays(stage)[i] = decay;
      Memory::ReadingKeys(stage)[i] = decay * key;
    }
  }
}

// Sum over this warp's keys: sum_r s[r] x[r] for this lane's column.
template <int kRows>
__device__ float SumOverKeys(const float (&s)[kRows], SharedPtr<float> x) {
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 four = SharedCast<const float4>(x + r)[0];
    sum = fmaf(four.x, s[r], sum);
    sum = fmaf(four.y, s[r + 1], sum);
    sum = fmaf(four.z, s[r + 2], sum);
    sum = fmaf(four.w, s[r + 3], sum);
  }
  return sum;
}

// s = decay s + key update, `decay` being this warp's decays of keys, or the head's for all.
template <int kRows, bool kDecaysKeys>
__device__ void Rewrite(float (&s)[kRows], SharedPtr<float> key, SharedPtr<float> decays,
                        float decay, float update) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 four = SharedCast<const float4>(key + r)[0];
    float4 kept = {decay, decay, decay, decay};
    if constexpr (kDecaysKeys) kept = SharedCast<const float4>(decays + r)[0];
    s[r] = fmaf(four.x, update, kept.x * s[r]);
    s[r + 1] = fmaf(four.y, update, kept.y * s[r + 1]);
    s[r + 2] = fmaf(four.z, update, kept.z * s[r + 2]);
    s[r + 3] = fmaf(four.w, update, kept.w * s[r + 3]);
  }
}

// Runs all tokens of a sequence, with S in s.
template <int kRows, StateRule kRule, bool kDecaysKeys>
__device__ void AdvanceColumns(const MatrixStates& states, const Place& place, int64_t first,
                               int32_t n_tokens, float (&s)[kRows]) {
  using Memory = Shared<kRows, kDecaysKeys>;
  const int warp = static_cast<int>(threadIdx.x) / kStateColumns;
  const int begin = warp * kRows;
  const float skip = states.skip != nullptr && place.inside ? states.skip[place.column] : 0.0f;
  Stage<kRows, kDecaysKeys>(states, place, first, 0);
  if (n_tokens > 1) Stage<kRows, kDecaysKeys>(states, place, first + 1, 1);
  __syncthreads();
  if constexpr (kRule == StateRule::kDelta) {
    Memory::OldValues(0)[static_cast<int>(threadIdx.x)] =
        SumOverKeys<kRows>(s, Memory::ReadingKeys(0) + begin);
    __syncthreads();
  }
  for (int32_t r = 0; r < n_tokens; ++r) {
    const int64_t token = first + r, gate = token * states.n_heads + place.head;
    const int stage = r % kStages, next = r + 1 < n_tokens ? (r + 1) % kStages : stage;
    const int parity = (r + 1) % 2;
    const float value = place.inside ? states.v[token * states.stride + place.column] : 0.0f;
    const float decay = kDecaysKeys ? 1.0f : states.decay[gate];
    float error = value;
    if constexpr (kRule == StateRule::kDelta) {
      error = fmaf(-decay, SumOverWarps(Memory::OldValues(r % 2)), value);
    }
    if (r + 2 < n_tokens) Stage<kRows, kDecaysKeys>(states, place, token + 2, (r + 2) % kStages);
    Rewrite<kRows, kDecaysKeys>(s, Memory::Keys(stage) + begin, Memory::Decays(stage) + begin,
                                decay, states.beta[gate] * error);
    Memory::Outputs(parity)[static_cast<int>(threadIdx.x)] =
        SumOverKeys<kRows>(s, Memory::Queries(stage) + begin);
    if constexpr (kRule == StateRule::kDelta) {
      Memory::OldValues(parity)[static_cast<int>(threadIdx.x)] =
          SumOverKeys<kRows>(s, Memory::ReadingKeys(next) + begin);
    }
    __syncthreads();
    if (warp == 0 && place.inside) {
      states.y[token * states.n_heads * states.value_dim + place.column] =
          fmaf(skip, value, SumOverWarps(Memory::Outputs(parity)));
    }
  }
}

// Launch: one block for 32 columns of a head of a sequence; grid x: heads and their column blocks,
// y: sequences. S is read and written once a batch.
template <int kRows, StateRule kRule, bool kDecaysKeys>
__global__ void __launch_bounds__(kThreads)
    AdvanceKernel(const __grid_constant__ MatrixStates states,
                  const __grid_constant__ DeviceSequences seqs) {
  std::byte* session = seqs.state[blockIdx.y];
  const int32_t first = seqs.token_begin[blockIdx.y];
  const int32_t n_tokens = seqs.token_begin[blockIdx.y + 1] - first;
  if (session == nullptr || n_tokens == 0) return;
  const Place place(states, blockIdx.x);
  const int begin = static_cast<int>(threadIdx.x) / kStateColumns * kRows;
  float* columns =
      states.Columns(session, place.head, blockIdx.x % StateColumnBlocks(states.value_dim)) +
      threadIdx.x % kStateColumns;
  float s[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    s[r] = begin + r < states.key_dim ? columns[(begin + r) * kStateColumns] : 0.0f;
  }
  AdvanceColumns<kRows, kRule, kDecaysKeys>(states, place, first, n_tokens, s);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (begin + r < states.key_dim) columns[(begin + r) * kStateColumns] = s[r];
  }
}

template <int kRows, StateRule kRule, bool kDecaysKeys>
void LaunchRule(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states) {
  const auto columns = static_cast<unsigned>(states.n_heads * StateColumnBlocks(states.value_dim));
  ForSequenceParts(seqs, [&](unsigned n, const DeviceSequences& some) {
    Launch(context, AdvanceKernel<kRows, kRule, kDecaysKeys>, dim3(columns, n), dim3(kThreads),
           Shared<kRows, kDecaysKeys>::kBytes, states, some);
  });
}

template <int kRows>
void LaunchAdvance(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states) {
  if (states.rule == StateRule::kAdd) {
    LaunchRule<kRows, StateRule::kAdd, false>(context, seqs, states);
  } else if (states.decays_keys) {
    LaunchRule<kRows, StateRule::kDelta, true>(context, seqs, states);
  } else {
    LaunchRule<kRows, StateRule::kDelta, false>(context, seqs, states);
  }
}

}  // namespace

void AdvanceStates(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states) {
  if (states.key_dim <= 4 * kWarps) return LaunchAdvance<4>(context, seqs, states);
  if (states.key_dim <= 8 * kWarps) return LaunchAdvance<8>(context, seqs, states);
  if (states.key_dim <= 16 * kWarps) return LaunchAdvance<16>(context, seqs, states);
  if (states.key_dim <= 32 * kWarps) return LaunchAdvance<32>(context, seqs, states);
  static_assert(64 * kWarps == kMaxStateKeyDim);
  LaunchAdvance<64>(context, seqs, states);
}

}  // namespace ovq::kernels::cuda
