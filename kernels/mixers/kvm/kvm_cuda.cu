// Key-Value Means on CUDA, the equations of kvm_cpu.cc: first gates, then the attention kernels
// over rows and window, then the fold of the leaving chunk, one thread block per head of a session.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/slide.cuh"
#include "kernels/mixers/kvm/kvm_choose.cuh"

namespace ovq::kernels {
namespace cuda {
namespace {

struct FoldArgs {
  AttentionBlocks blocks;
  KvmConfig config;
  KvmParts parts;
  KvmWeights weights;
  DeviceSequences seqs;
  const float* gate_logits;
  int32_t wave;
};

// Adds a leaving chunk to the rows of a head. T: type of keys, values and sums.
template <class T>
struct Fold {
  const Choice<T>& choice;
  const KvmFold<T>& at;
  const TokenArrays& tokens;

  __device__ int KeyGroups() const { return (at.d() + kRoundingGroup - 1) / kRoundingGroup; }
  __device__ int Groups() const {
    return KeyGroups() + (at.dv() + kRoundingGroup - 1) / kRoundingGroup;
  }

  // Sums one group of a row's channels (keys first, then values): token i alone, or i and the
  // tokens merged after it in order of position, added to the row's old sum.
  __device__ void SumGroup(int32_t i, int32_t row, bool appends, int group) const {
    const bool is_value = group >= KeyGroups();
    const int from = (is_value ? group - KeyGroups() : group) * kRoundingGroup;
    const int left = (is_value ? at.dv() : at.d()) - from, stride = is_value ? 1 : kBlockSlots;
    T* sums = (is_value ? at.Value(at.parts.value_sums, row) : at.Key(at.parts.key_sums, row)) +
              from * stride;
    float sum[kRoundingGroup];
#pragma unroll
    for (int c = 0; c < kRoundingGroup; ++c) {
      sum[c] = !appends && c < left ? ToFloat(sums[c * stride]) : 0.0f;
    }
    while (i >= 0) {
      const float gate = at.Gate(i, is_value, appends);
      const T* value = at.WindowValue(i) + from;
#pragma unroll
      for (int c = 0; c < kRoundingGroup; ++c) {
        if (c < left) sum[c] += (is_value ? ToFloat(value[c]) : choice.Key(i, from + c)) * gate;
      }
      if (appends) break;
      const int32_t after = tokens.next[i];
      i = after;
    }
    RoundGroup(sum, left, at.Rounding(row, is_value), static_cast<uint32_t>(from), 1, sums,
               static_cast<size_t>(stride));
  }

  __device__ void Append() const {
    for (int32_t item = threadIdx.x; item < at.n_tokens() * Groups(); item += kFoldThreads) {
      const int32_t i = item % at.n_tokens(), row = tokens.appended[i];
      if (row >= 0) SumGroup(i, row, /*appends=*/true, item / at.n_tokens());
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < at.n_tokens(); i += kFoldThreads) {
      const int32_t row = tokens.appended[i];
      if (row < 0) continue;
      const T* value = at.WindowValue(i);
      const float gate = at.LengthGate(i);
      float squares = 0;
      for (int c = 0; c < at.dv(); ++c) {
        const float x = ToFloat(value[c]) * gate;
        squares += x * x;
      }
      at.Length(row) = at.config.value_lengths ? sqrtf(squares) : 1.0f;
      Refresh(row);
    }
    __syncthreads();
  }

  __device__ void Merge() const {
    for (int32_t item = threadIdx.x; item < at.n_tokens() * Groups(); item += kFoldThreads) {
      const int32_t i = item % at.n_tokens(), first = tokens.first[i], row = tokens.row[i];
      if (first != 0) SumGroup(i, row, /*appends=*/false, item / at.n_tokens());
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; at.config.value_lengths && i < at.n_tokens(); i += kFoldThreads) {
      const int32_t first = tokens.first[i], row = tokens.row[i];
      if (first != 0) Refresh(row);
    }
    for (int32_t row = threadIdx.x; !at.config.value_lengths && row < at.chunk.n_next;
         row += kFoldThreads) {
      at.Length(row) += 1;
      Refresh(row);
    }
  }

  // Recomputes a row's key and value, which attention reads, from its sums and its length.
  __device__ void Refresh(int32_t row) const {
    float mean, scale;
    choice.SlotNorm(row, mean, scale);
    const T* sums = at.Key(at.parts.key_sums, row);
    T* key = at.Key(at.blocks.dictionary_keys.place, row);
    const float temp = choice.weights.state_temps[at.chunk.kv_head];
    for (int c = 0; c < at.d(); ++c) {
      const float normed = choice.Normed(ToFloat(sums[c * kBlockSlots]), mean, scale, c);
      key[c * kBlockSlots] = Slots<T>::Nearest(normed * temp);
    }
    const T* of_values = at.Value(at.parts.value_sums, row);
    T* value = at.Value(at.blocks.dictionary_values.place, row);
    float squares = 0;
    for (int c = 0; c < at.dv(); ++c) squares += ToFloat(of_values[c]) * ToFloat(of_values[c]);
    const float norm = fmaxf(sqrtf(squares), kKvmSmallestNorm), length = at.Length(row);
    for (int c = 0; c < at.dv(); ++c) value[c] = at.SlotValue(ToFloat(of_values[c]), norm, length);
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
__global__ void __launch_bounds__(kFoldThreads) FoldChunks(const __grid_constant__ FoldArgs args) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = args.seqs.state[s];
  const int32_t n = args.blocks.wave_span;
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(args.seqs, s, n, args.wave);
  if (tokens.end != tokens.span_begin + n) return;
  const FullChunk chunk = {.session = session,
                           .kv_head = kv_head,
                           .chunk = tokens.span_begin / n,
                           .n_old = args.blocks.LiveAt(s, kv_head, args.wave),
                           .n_next = args.blocks.LiveAt(s, kv_head, args.wave + 1)};
  if (chunk.n_next == 0) return;
  const Choice<T> choice({args.blocks, args.config, args.parts, chunk}, args.weights);
  const Fold<T> fold = {choice, choice.at, choice.tokens};
  choice.ChooseAppended();
  fold.Append();
  if (choice.at.n_new() < n) {
    choice.ChooseMerges();
    fold.Merge();
  }
  fold.MoveWindow();
}

// Grid (sequences, heads). Stores a wave's gates, 1 + elu(logit), in the window.
__global__ void __launch_bounds__(kFoldThreads) StoreGates(const __grid_constant__ FoldArgs args) {
  const int s = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  std::byte* session = args.seqs.state[s];
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(args.seqs, s, args.blocks.wave_span, args.wave);
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

void KvmAttentionCuda(DeviceContext& context, const KvmArgs& layer_args) {
  cuda::FoldArgs args = {layer_args.blocks,
                         layer_args.config,
                         layer_args.parts,
                         layer_args.weights,
                         layer_args.seqs.device,
                         layer_args.gate_logits,
                         0};
  const dim3 grid(static_cast<unsigned>(layer_args.seqs.n_seqs()),
                  static_cast<unsigned>(layer_args.blocks.shape.n_kv_heads));
  const auto fold =
      VisitSlots(layer_args.blocks.dtype, []<Unscaled T>(Slots<T>) { return cuda::FoldChunks<T>; });
  AttendWavesCuda(
      context, layer_args,
      [&](int wave) {
        args.wave = wave;
        if (layer_args.gate_logits == nullptr) return;
        cuda::Launch(context, cuda::StoreGates, grid, cuda::kFoldThreads, 0, args);
      },
      [&](int wave) {
        args.wave = wave;
        cuda::Launch(context, fold, grid, cuda::kFoldThreads,
                     cuda::ChooseSharedBytes(layer_args.blocks.wave_span), args);
      });
}

}  // namespace ovq::kernels
