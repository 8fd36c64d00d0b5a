// Key-Value Means on CUDA, the equations of kvm_cpu.cc: first gates, then the attention kernels
// over slots and window, then the fold of the leaving chunk, one thread block per head of a
// session.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/cuda/slide.cuh"
#include "kernels/mixers/kvm/fold.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kFoldThreads = 256;
// Slots that are scored together, and how many of their channels are in shared memory at a time.
constexpr int kTileSlots = 16;
constexpr int kTileChannels = 64;

// One element per token of the chunk.
struct TokenArrays {
  SharedPtr<float> mean, scale;  // statistics of its key's LayerNorm
  SharedPtr<float> score;        // score of the best slot to merge into so far
  SharedPtr<int32_t> slot;       // that slot
  SharedPtr<float> nearness;     // highest score of any slot
  SharedPtr<int32_t> appended;   // slot that the token becomes, or -1
  SharedPtr<int32_t>
      next;  // shares nearness' memory: the next token merged into the same slot, or -1
  SharedPtr<int32_t>
      first;  // shares score's memory: whether the token is the first one merged there
};
// The slots of a tile.
struct TileArrays {
  SharedPtr<float> mean, scale;  // [kTileSlots]
  SharedPtr<float> keys;         // [kTileChannels][kTileSlots]
};

constexpr size_t ChooseSharedBytes(int32_t n_tokens) {
  return (static_cast<size_t>(n_tokens) * 6 + kTileSlots * (2 + kTileChannels)) * sizeof(float);
}

// Shared memory that every supported GPU allows a thread block.
static_assert(ChooseSharedBytes(kMaxKvmCudaChunkLen) <= size_t{99} << 10);

// Chooses the slots that the tokens of a leaving chunk become or merge into: one thread per token,
// tokens' scores in shared memory. A score is one chain of sums over the channels, so equal keys
// and slots have equal scores.
template <class T>
struct Choice {
  using Norm = typename KvmFold<T>::Norm;

  KvmFold<T> at;
  TokenArrays tokens;
  TileArrays tile;

  __device__ Choice(const KvmArgs& args, const FullChunk& chunk) : at{args, chunk} {
    const auto bytes = static_cast<uint32_t>(at.n_tokens()) * 4;
    tokens = {.mean = DynamicShared<float>(0),
              .scale = DynamicShared<float>(bytes),
              .score = DynamicShared<float>(2 * bytes),
              .slot = DynamicShared<int32_t>(3 * bytes),
              .nearness = DynamicShared<float>(4 * bytes),
              .appended = DynamicShared<int32_t>(5 * bytes),
              .next = DynamicShared<int32_t>(4 * bytes),
              .first = DynamicShared<int32_t>(2 * bytes)};
    tile = {.mean = DynamicShared<float>(6 * bytes),
            .scale = DynamicShared<float>(6 * bytes + kTileSlots * 4),
            .keys = DynamicShared<float>(6 * bytes + 2 * kTileSlots * 4)};
  }

  // Channel c of a token's key without its temperature, masked channels zero; before and after the
  // norm.
  __device__ float PlainKey(const T* key, int c) const {
    return c < at.config.masked_dims
               ? 0.0f
               : ToFloat(key[c * kBlockSlots]) / at.args.weights.front_temps[at.chunk.kv_head];
  }
  __device__ float Key(int32_t i, int c) const {
    const float mean = tokens.mean[i], scale = tokens.scale[i];
    return at.Normed(PlainKey(at.WindowKey(i), c), {mean, scale}, c);
  }

  __device__ void PrepareKeys() const {
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const T* key = at.WindowKey(i);
      const Norm norm = at.MeasureNorm([&](int c) { return PlainKey(key, c); });
      tokens.mean[i] = norm.mean;
      tokens.scale[i] = norm.scale;
    }
  }

  __device__ void ForgetScores() const {
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      tokens.score[i] = -INFINITY;
      tokens.slot[i] = at.sinks();
    }
  }

  // Loads channels [begin, begin + kTileChannels) of the normalised keys of a tile's slots.
  __device__ void LoadTile(int32_t first, int32_t n_slots, int begin) const {
    for (int item = threadIdx.x; item < kTileSlots * kTileChannels; item += kFoldThreads) {
      const int r = item % kTileSlots, c = begin + item / kTileSlots;
      float key = 0;
      if (r < n_slots && c < at.d()) {
        const float mean = tile.mean[r], scale = tile.scale[r];
        const T sum = at.Key(at.parts.key_sums, first + r)[c * kBlockSlots];
        key = at.Normed(ToFloat(sum), {mean, scale}, c);
      }
      tile.keys[item] = key;
    }
  }

  // Scores slots [begin, end): a better score replaces a token's score and slot; ties to the lowest
  // slot. All threads must call it together.
  __device__ void Probe(int32_t begin, int32_t end) const {
    for (int32_t first = begin; first < end; first += kTileSlots) {
      const int32_t n_slots = end - first < kTileSlots ? end - first : kTileSlots;
      if (static_cast<int32_t>(threadIdx.x) < n_slots) {
        const Norm norm = at.SlotNorm(first + static_cast<int32_t>(threadIdx.x));
        tile.mean[threadIdx.x] = norm.mean;
        tile.scale[threadIdx.x] = norm.scale;
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
    int32_t slot = tokens.slot[i];
#pragma unroll
    for (int r = 0; r < kTileSlots; ++r) {
      if (r >= n_slots || !(sum[r] > best)) continue;
      best = sum[r];
      slot = first + r;
    }
    tokens.score[i] = best;
    tokens.slot[i] = slot;
  }

  // Fills tokens.appended: slots for the tokens that are least similar to any slot, ties to the
  // lower token, in order of position; the first tokens where there is no choice.
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
    int32_t slot = at.chunk.n_old;
    for (int32_t i = 0; i < at.n_tokens(); ++i) {
      const int32_t becomes_slot = tokens.appended[i];
      if (becomes_slot >= 0) tokens.appended[i] = slot++;
    }
  }

  // Chooses the tokens that become slots, and every token's best old slot.
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

  // Chooses the best of all slots for the tokens that are not appended, and links them by slot.
  __device__ void ChooseMerges() const {
    Probe(at.chunk.n_old > at.sinks() ? at.chunk.n_old : at.sinks(), at.chunk.n_next);
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const int32_t mine = tokens.slot[i], becomes = tokens.appended[i];
      int32_t next = -1, first = becomes < 0 ? 1 : 0;
      for (int32_t j = at.n_tokens() - 1; j >= 0; --j) {
        const int32_t other = tokens.slot[j], other_becomes = tokens.appended[j];
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

// Adds a leaving chunk to the slots of a head. T: type of keys, values and sums.
template <class T>
struct Fold {
  const Choice<T>& choice;
  const KvmFold<T>& at;
  const TokenArrays& tokens;

  __device__ void SumGroup(int32_t i, int32_t slot, bool appends, int group) const {
    at.SumGroup(
        i, slot, appends, group, [&](int32_t token, int c) { return choice.Key(token, c); },
        [&](int32_t token) {
          const int32_t next = tokens.next[token];
          return next;
        });
  }

  __device__ void Append() const {
    for (int32_t item = threadIdx.x; item < at.n_tokens() * at.groups(); item += kFoldThreads) {
      const int32_t i = item % at.n_tokens(), slot = tokens.appended[i];
      if (slot >= 0) SumGroup(i, slot, /*appends=*/true, item / at.n_tokens());
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const int32_t slot = tokens.appended[i];
      if (slot < 0) continue;
      at.Length(slot) = at.FirstLength(i);
      at.Refresh(slot);
    }
    __syncthreads();
  }

  __device__ void Merge() const {
    for (int32_t item = threadIdx.x; item < at.n_tokens() * at.groups(); item += kFoldThreads) {
      const int32_t i = item % at.n_tokens(), first = tokens.first[i], slot = tokens.slot[i];
      if (first != 0) SumGroup(i, slot, /*appends=*/false, item / at.n_tokens());
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; at.config.value_lengths && i < at.n_tokens(); i += kFoldThreads) {
      const int32_t first = tokens.first[i], slot = tokens.slot[i];
      if (first != 0) at.Refresh(slot);
    }
    for (int32_t slot = threadIdx.x; !at.config.value_lengths && slot < at.chunk.n_next;
         slot += kFoldThreads) {
      at.Length(slot) += 1;
      at.Refresh(slot);
    }
  }

  // Moves the window's tokens n, n + 1, ... to its places 0, 1, ..., one chunk after the other.
  __device__ void MoveWindow() const {
    __syncthreads();
    SlideRecent<T>(at.blocks, at.chunk);
    if (!at.config.gated()) return;
    float* gates = at.parts.gates.template At<float>(at.chunk.session, at.chunk.kv_head);
    const int32_t n = at.n_tokens();
    for (int32_t to = 0; to < (at.blocks.recent_spans - 1) * n; to += n) {
      for (int32_t i = threadIdx.x; i < n; i += kFoldThreads) gates[to + i] = gates[to + n + i];
      __syncthreads();
    }
  }
};

// Grid (sequences, heads).
template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    FoldChunks(const __grid_constant__ KvmArgs args, const __grid_constant__ DeviceWave wave) {
  FullChunk chunk;
  if (!FindFullChunk(args.blocks, wave, chunk) || chunk.n_next == 0) return;
  const Choice<T> choice(args, chunk);
  const Fold<T> fold = {choice, choice.at, choice.tokens};
  choice.ChooseAppended();
  fold.Append();
  if (choice.at.n_new() < choice.at.n_tokens()) {
    choice.ChooseMerges();
    fold.Merge();
  }
  fold.MoveWindow();
}

// Grid (sequences, heads). Stores a wave's gates, 1 + elu(logit), in the window.
__global__ void __launch_bounds__(kFoldThreads)
    StoreGates(const __grid_constant__ KvmArgs args, const __grid_constant__ DeviceWave wave) {
  const int s = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  std::byte* session = wave.seqs.state[s];
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(wave, s, args.blocks.wave_span);
  if (tokens.begin >= tokens.end) return;
  float* gates =
      args.parts.gates.At<float>(session, head, tokens.begin - args.blocks.origin(tokens.begin));
  const float* logits = args.gate_logits + int64_t{tokens.row} * args.blocks.shape.n_heads + head;
  for (int64_t i = threadIdx.x; i < tokens.end - tokens.begin; i += kFoldThreads) {
    const float z = logits[i * args.blocks.shape.n_heads];
    gates[i] = z > 0 ? 1 + z : expf(z);
  }
}

}  // namespace
}  // namespace cuda

void KvmAttentionCuda(DeviceContext& context, const KvmArgs& args) {
  const auto fold =
      VisitSlots(args.blocks.dtype, []<Unscaled T>(Slots<T>) { return cuda::FoldChunks<T>; });
  const dim3 grid = cuda::HeadGrid(args);
  AttendWavesCuda(
      context, args,
      [&](const DeviceWave& wave) {
        if (args.gate_logits == nullptr) return;
        cuda::Launch(context, cuda::StoreGates, grid, cuda::kFoldThreads, 0, args, wave);
      },
      [&](const DeviceWave& wave) {
        cuda::Launch(context, fold, grid, cuda::kFoldThreads,
                     cuda::ChooseSharedBytes(args.blocks.wave_span), args, wave);
      });
}

}  // namespace ovq::kernels
