// Key-Value Means on the CPU, KVM paper section 4. For one head with slots r (key sums sk
// [n_rows, head_dim], value sums sv [n_rows, value_head_dim], lengths sl [n_rows]) and the window's
// keys K and values V up to position t:
//   o_t = softmax(q_t [LN(sk) temp_s | K temp_f]^T) [sv / |sv| sl | V]
// When a chunk leaves the window, its keys k_i become p_i = LN(k_i without masked channels), with
// gates g_i. The keys least similar to any slot are appended; the others merge:
//   sk_r += sum_i g_i p_i,  sv_r += sum_i g_i v_i  over the keys i whose most similar slot is r
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slide.h"
#include "kernels/mixers/kvm/fold.h"

namespace ovq::kernels {
namespace {

// Buffers of one thread for the update of a chunk of n tokens.
struct Buffers {
  float* keys;           // [n][head_dim], prepared for scoring
  const float** key_of;  // [n] -> keys
  float* score;          // [n], score of the best slot to merge into so far
  int32_t* slot;         // [n], that slot
  float* nearness;       // [n], highest score of any slot
  float* block_score;    // [n], best score within one block of slots
  int32_t* block_slot;   // [n]
  int32_t* order;        // [n]
  float* block;          // [head_dim][64]
  int32_t* next;         // [n], the next token merged into the same slot, or -1
  float* scratch;
};

Buffers MakeBuffers(ScratchScope& scope, const KvmArgs& args) {
  const auto n = static_cast<size_t>(args.config.law.chunk_len);
  const int d = args.blocks.shape.head_dim, dv = args.blocks.shape.value_head_dim;
  return {.keys = scope.Allocate<float>(n * static_cast<size_t>(d)),
          .key_of = scope.Allocate<const float*>(n),
          .score = scope.Allocate<float>(n),
          .slot = scope.Allocate<int32_t>(n),
          .nearness = scope.Allocate<float>(n),
          .block_score = scope.Allocate<float>(n),
          .block_slot = scope.Allocate<int32_t>(n),
          .order = scope.Allocate<int32_t>(n),
          .block = scope.Allocate<float>(static_cast<size_t>(d) * kBlockSlots),
          .next = scope.Allocate<int32_t>(n),
          .scratch = scope.Allocate<float>(
              BlockAttentionScratch(static_cast<int>(n), d, ValueStride(dv)))};
}

// LayerNorm of the columns of x [n_channels][64], in place.
void Normalise(const KvmWeights& weights, int n_channels, float* x) {
  constexpr int kRows = kBlockSlots;
  float mean[kRows] = {}, scale[kRows] = {};
  for (int c = 0; c < n_channels; ++c) {
    for (int r = 0; r < kRows; ++r) mean[r] += x[c * kRows + r];
  }
  for (int r = 0; r < kRows; ++r) mean[r] /= static_cast<float>(n_channels);
  for (int c = 0; c < n_channels; ++c) {
    for (int r = 0; r < kRows; ++r) {
      const float apart = x[c * kRows + r] - mean[r];
      scale[r] += apart * apart;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    scale[r] = 1 / std::sqrt(scale[r] / static_cast<float>(n_channels) + kKvmNormEps);
  }
  for (int c = 0; c < n_channels; ++c) {
    for (int r = 0; r < kRows; ++r) {
      x[c * kRows + r] =
          (x[c * kRows + r] - mean[r]) * scale[r] * weights.norm_weight[c] + weights.norm_bias[c];
    }
  }
}

template <class T>
class Fold {
 public:
  Fold(const KvmArgs& args, const FullChunk& chunk, const Buffers& buffers)
      : args_(args),
        at_{args, chunk},
        buffers_(buffers),
        n_(at_.n_tokens()),
        d_(at_.d()),
        dv_(at_.dv()) {}

  void Run() {
    const int32_t n_old = at_.chunk.n_old, n_new = at_.n_new(), sinks = at_.sinks();
    PrepareKeys();
    if (at_.selects()) {
      ForgetScores();
      Probe(0, sinks);
      std::copy_n(buffers_.score, n_, buffers_.nearness);
    }
    ForgetScores();
    Probe(sinks, n_old);
    std::iota(buffers_.order, buffers_.order + n_, 0);
    if (at_.selects()) Select(n_new);
    for (int i = 0; i < n_new; ++i) Append(buffers_.order[i], n_old + i);
    if (n_new < n_) {
      Probe(std::max(n_old, sinks), at_.chunk.n_next);
      Merge(n_new);
    }
    MoveWindow();
  }

 private:
  const float* Key(int i) const { return buffers_.keys + static_cast<size_t>(i) * d_; }

  // Fills buffers.keys: the chunk's keys without their temperature, masked channels zeroed,
  // normalised.
  void PrepareKeys() const {
    const float temp = args_.weights.front_temps[at_.chunk.kv_head];
    const int masked = at_.config.masked_dims * kBlockSlots;
    for (int first = 0; first < n_; first += kBlockSlots) {
      const T* keys = at_.WindowKey(first);
      for (int i = 0; i < d_ * kBlockSlots; ++i) {
        buffers_.block[i] = i < masked ? 0.0f : ToFloat(keys[i]) / temp;
      }
      Normalise(args_.weights, d_, buffers_.block);
      for (int i = first; i < std::min(n_, first + kBlockSlots); ++i) {
        float* key = buffers_.keys + static_cast<size_t>(i) * d_;
        for (int c = 0; c < d_; ++c) key[c] = buffers_.block[c * kBlockSlots + i - first];
        buffers_.key_of[i] = key;
      }
    }
  }

  void ForgetScores() const {
    std::fill_n(buffers_.score, n_, -std::numeric_limits<float>::infinity());
    std::fill_n(buffers_.slot, n_, at_.sinks());
  }

  // Scores slots [begin, end): a better score replaces buffers.score and its slot; ties to the
  // lowest slot. A score is one chain over the channels: equal slots and keys have equal scores.
  void Probe(int32_t begin, int32_t end) const {
    for (int32_t first = begin; first < end; first += kBlockSlots) {
      const int32_t n_slots = std::min(kBlockSlots, end - first);
      std::fill_n(buffers_.block, d_ * kBlockSlots, 0.0f);
      for (int32_t r = 0; r < n_slots; ++r) {
        const T* sums = at_.Key(args_.parts.key_sums, first + r);
        for (int c = 0; c < d_ * kBlockSlots; c += kBlockSlots) {
          buffers_.block[c + r] = ToFloat(sums[c]);
        }
      }
      Normalise(args_.weights, d_, buffers_.block);
      const KvBlock block = {
          .keys = buffers_.block, .values = nullptr, .bias = nullptr, .live = n_slots, .begin = 0};
      AttendBlocksCpu({.dtype = DType::kF32,
                       .head_dim = d_,
                       .value_stride = ValueStride(dv_),
                       .window = 0,
                       .blocks = {&block, 1},
                       .rows = buffers_.key_of,
                       .n_queries = 0,
                       .query_position = nullptr,
                       .out = nullptr,
                       .n_probes = n_,
                       .best_score = buffers_.block_score,
                       .best_slot = buffers_.block_slot,
                       .scratch = buffers_.scratch});
      for (int i = 0; i < n_; ++i) {
        if (!(buffers_.block_score[i] > buffers_.score[i])) continue;
        buffers_.score[i] = buffers_.block_score[i];
        buffers_.slot[i] = first + buffers_.block_slot[i];
      }
    }
  }

  // Fills buffers.order: first the n_new tokens that are least similar to any slot, ties to the
  // lower token, then the others; both parts in order of position.
  void Select(int n_new) const {
    float* nearness = buffers_.nearness;
    for (int i = 0; i < n_; ++i) nearness[i] = std::max(nearness[i], buffers_.score[i]);
    int32_t* order = buffers_.order;
    std::sort(order, order + n_, [&](int32_t a, int32_t b) {
      return nearness[a] != nearness[b] ? nearness[a] < nearness[b] : a < b;
    });
    std::sort(order, order + n_new);
    std::sort(order + n_new, order + n_);
  }

  void Append(int i, int32_t slot) const {
    SumSlot(i, slot, /*appends=*/true);
    at_.Length(slot) = at_.FirstLength(i);
    at_.Refresh(slot);
  }

  // Merges tokens order[n_new ...] into their best slots, those of one slot in order of position.
  void Merge(int n_new) const {
    int32_t* begin = buffers_.order + n_new;
    int32_t* const end = buffers_.order + n_;
    const int32_t* slot_of = buffers_.slot;
    std::sort(begin, end, [&](int32_t a, int32_t b) {
      return slot_of[a] != slot_of[b] ? slot_of[a] < slot_of[b] : a < b;
    });
    while (begin < end) {
      const int32_t first = *begin, slot = slot_of[first];
      for (; begin < end && slot_of[*begin] == slot; ++begin) {
        const bool is_last = begin + 1 == end || slot_of[begin[1]] != slot;
        buffers_.next[*begin] = is_last ? -1 : begin[1];
      }
      SumSlot(first, slot, /*appends=*/false);
      if (at_.config.value_lengths) at_.Refresh(slot);
    }
    for (int32_t slot = 0; !at_.config.value_lengths && slot < at_.chunk.n_next; ++slot) {
      at_.Length(slot) += 1;
      at_.Refresh(slot);
    }
  }

  void SumSlot(int32_t i, int32_t slot, bool appends) const {
    for (int group = 0; group < at_.groups(); ++group) {
      at_.SumGroup(
          i, slot, appends, group, [&](int32_t token, int c) { return Key(token)[c]; },
          [&](int32_t token) { return buffers_.next[token]; });
    }
  }

  // Moves the window's tokens n, n + 1, ... to its places 0, 1, ...
  void MoveWindow() const {
    SlideRecentCpu(args_.blocks, at_.chunk);
    if (!at_.config.gated()) return;
    float* gates = args_.parts.gates.At<float>(at_.chunk.session, at_.chunk.kv_head);
    const int stay = (args_.blocks.recent_spans - 1) * n_;
    std::copy(gates + n_, gates + n_ + stay, gates);
  }

  const KvmArgs& args_;
  const KvmFold<T> at_;
  const Buffers& buffers_;
  const int n_, d_, dv_;
};

// Stores the tile's gates: 1 + elu(logit).
void StoreGates(const KvmArgs& args, const TileTokens& tile) {
  if (args.gate_logits == nullptr) return;
  float* gates =
      args.parts.gates.At<float>(tile.session, tile.kv_head, tile.block * kBlockSlots + tile.slot);
  for (int t = 0; t < tile.n_tokens; ++t) {
    const float z = args.gate_logits[(tile.row + t) * args.blocks.shape.n_kv_heads + tile.kv_head];
    gates[t] = z > 0 ? 1 + z : std::exp(z);
  }
}

}  // namespace

void KvmAttentionCpu(DeviceContext& context, const KvmArgs& args) {
  ScratchScope scope(context);
  std::vector<Buffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakeBuffers(scope, args));
  AttendTilesCpu(
      context, args, [&](const TileTokens& tile) { StoreGates(args, tile); },
      [&](const FullChunk& chunk, int thread) {
        if (chunk.n_next == 0) return;
        VisitSlots(args.blocks.dtype,
                   [&]<Unscaled T>(Slots<T>) { Fold<T>(args, chunk, buffers[thread]).Run(); });
      });
}

}  // namespace ovq::kernels
