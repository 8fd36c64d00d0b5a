// Attention over blocks of 64 slots (block_attention.h) on the CPU and on CUDA, shared by the
// softmax, bswa, ovq, kvm, vq, closest_pair and key_diff mixers. A mixer describes its blocks
// (AttentionBlocks) and the update at a chunk's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/device.h"
#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// Query head h reads key/value head h / group().
struct AttentionShape {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int value_head_dim = 0;
  constexpr int group() const { return n_heads / n_kv_heads; }
  // Channels of a token's queries, keys, values and outputs.
  constexpr int64_t q_width() const { return int64_t{n_heads} * head_dim; }
  constexpr int64_t k_width() const { return int64_t{n_kv_heads} * head_dim; }
  constexpr int64_t v_width() const { return int64_t{n_kv_heads} * value_head_dim; }
  constexpr int64_t out_width() const { return int64_t{n_heads} * value_head_dim; }
};

// One batch's queries, keys and values, ready for a kernel. Tokens are `stride` floats apart.
struct AttentionTensors {
  const float* q;  // [n_tokens, n_heads, head_dim], processed as AttentionInput says
  const float* k;  // [n_tokens, n_kv_heads, head_dim]
                   // both bfloat16 values if that is the compute dtype
  const float* v;  // [n_tokens, n_kv_heads, value_head_dim]
  int64_t stride;
  void* out;  // [n_tokens, n_heads, value_head_dim], packed
  DType out_dtype;
  TensorView x = {};  // [n_tokens, d_model], the layer's input in the compute dtype
  const float* gate =
      nullptr;  // [n_tokens, n_heads, value_head_dim], tokens `stride` apart; null without a gate
  bool stored = false;  // keys and values are in their recent slots already
};

// The address of block i of a kv head: in the session's state, or in memory that the mixer divides
// among the sequences of a batch.
struct BlockPlaces {
  StatePlace place = {};
  int32_t ring = 0;  // > 0: block i is stored at index i % ring
  std::byte* shared =
      nullptr;  // if set, used instead of the state: `seq_stride` bytes per sequence
  size_t seq_stride = 0;

  template <class T = std::byte>
  constexpr T* At(std::byte* session, int sequence, int head, int64_t block) const {
    if (ring > 0) {
      block = block <= INT32_MAX ? static_cast<uint32_t>(block) % static_cast<uint32_t>(ring)
                                 : block % ring;
    }
    std::byte* base =
        shared == nullptr ? session : shared + static_cast<size_t>(sequence) * seq_stride;
    return place.At<T>(base, head, block);
  }
};

// The dictionary update at the end of a full span (chunk_update.h).
enum class Merge : uint8_t { kNothing, kValues, kKeysAndValues };

// The slots that a mixer's queries attend to: `live` dictionary slots, then the recent tokens.
struct AttentionBlocks {
  AttentionShape shape;
  DType dtype = DType::kF32;  // of keys and values in the blocks
  DType compute_dtype =
      DType::kF32;  // kBF16: q and k hold bfloat16 values, tensor cores may be used

  // Positions with equal floor(t / wave_span) make a wave; 0: all tokens of a batch do.
  int32_t wave_span = 0;

  // Dictionary: slots 0, 1, ..., each with a bias added to its score if dictionary_bias has a
  // place. `live` gives their number at the beginning of a token's span, or fixed_live if
  // live.slots is null.
  LiveSlots live = {};
  int32_t fixed_live = 0;
  BlockPlaces dictionary_keys, dictionary_values, dictionary_bias;

  // Recent tokens: position t is in slot (t - origin) % 64 of block (t - origin) / 64. The origin
  // is 0, or with recent_spans the beginning of the first of that many spans ending with t's, less
  // recent_sinks: the slots before that span then hold the sequence's first tokens, which stay when
  // others leave (slide.h). A query attends to blocks up to its own (all from block 0 on, or with a
  // ring the newest `ring` of them) and in them to positions up to its own, the last `window` of
  // them if window is not 0. Keys outside the state are filled by the mixer.
  int32_t recent_spans = 0;
  int32_t recent_sinks = 0;
  const float* recent_key_scale = nullptr;  // [n_kv_heads], factor of keys when stored; null: 1
  int32_t window = 0;
  BlockPlaces recent_keys, recent_values;
  int32_t seen_blocks = 0;  // > 0: a query attends to that many blocks, though the ring has more

  // The dictionary slot nearest to the key at t: element t % wave_span of a kv head. With `probe`
  // attention finds it: the slot with the highest k . key (no bias) and that product, ties to the
  // lowest slot. Nobody reads them where there is no dictionary. Places are indexed by element.
  bool probe = false;
  StatePlace best_score, best_slot;  // float, int32

  Merge merge = Merge::kNothing;
  // Merged means are divided by their norms: keys and values, or with a delta rule only keys.
  bool normalizes = false;
  // Delta rule: [n_kv_heads] in the device's memory, or null. A key times this factor attends as a
  // query to the slots that are live at the beginning of its span (biases included; the result is 0
  // if there are none). The result is subtracted from its value, and a slot's value gains the sum
  // of such differences over the count.
  const float* delta_scale = nullptr;
  int32_t layer = 0;  // only used by the random numbers of merged means
  // [64] of every dictionary block: uint32, and float: ln count and what variance_scale adds.
  StatePlace counts, log_counts;
  // [n_kv_heads] in the device's memory, or null: the weight, in a slot's score, of the variance of
  // its keys (slot_variance.h).
  const float* variance_scale = nullptr;

  // Live slots of a sequence's kv head at the beginning of its wave-th wave.
  constexpr int32_t LiveAt(int sequence, int kv_head, int64_t wave) const {
    return live.slots == nullptr ? fixed_live : live.At(sequence, kv_head, wave);
  }
  constexpr float KeyScale(int kv_head) const {
    return recent_key_scale == nullptr ? 1.0f : recent_key_scale[kv_head];
  }
  // Whether recent keys lie in the state.
  constexpr bool keeps_keys() const {
    return recent_keys.shared == nullptr && recent_keys.place.index_stride > 0;
  }
  constexpr bool has_bias() const { return dictionary_bias.place.index_stride > 0; }
  constexpr int32_t ring() const {
    return recent_keys.ring > 0 ? recent_keys.ring : recent_values.ring;
  }
  constexpr int32_t seen() const { return seen_blocks > 0 ? seen_blocks : ring(); }
  constexpr int64_t span_begin(int64_t position) const {
    return wave_span > 0 ? position / wave_span * wave_span : 0;
  }
  constexpr int64_t origin(int64_t position) const {
    const int64_t begin =
        span_begin(position) - (recent_spans - 1) * int64_t{wave_span} - recent_sinks;
    return recent_spans > 0 && begin > 0 ? begin : 0;
  }
};

// The most blocks that any token of these sequences attends to.
int64_t MostBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs);

// The extents of these tokens' recent slots and of their best_score and best_slot. Places that are
// not set are not in the state.
std::vector<StateExtent> RecentExtents(const AttentionBlocks& blocks, const TokenRange& tokens);

// One head of a session at the end of a span: the dictionary grows from n_old to n_next slots.
struct FullChunk {
  std::byte* session;
  int kv_head;
  int64_t chunk;
  int32_t n_old, n_next;
};

// The arguments of a batch's attention. Kernels on a device take them whole, and read seqs only
// through a DeviceWave.
struct AttentionArgs {
  AttentionBlocks blocks;
  const BatchSequences& seqs;
  AttentionTensors tokens;
};

// Tokens of one kv head of one sequence that lie in one recent block, so that they attend to the
// same blocks.
struct TileTokens {
  int sequence;
  int kv_head;
  std::byte* session;
  int64_t row;      // index in the batch of the first token
  int64_t element;  // index of the first token in its span
  int64_t block;    // recent
  int slot;         // first token's slot in that block
  int n_tokens;
  int32_t n_live;  // dictionary slots
};

// Attends for all tokens of a batch: stores each one's key and value, fills tokens.out, and merges
// the spans that the tokens fill.
void AttendCpu(DeviceContext& context, const AttentionArgs& args);
void AttendCuda(DeviceContext& context, const AttentionArgs& args);
// PrepareHeads for a batch of one token a sequence, which also stores each one's key and value;
// values: [n_tokens, n_kv_heads, value_head_dim], not changed.
void PrepareAndStoreCuda(DeviceContext& context, const HeadPrep& prep, const HeadRows& values,
                         const AttentionBlocks& blocks, const DeviceSequences& seqs);
// Whether AttendCpu's threads share the blocks of a head, because there are too few heads for the
// threads and enough blocks. No bit depends on it.
bool SharesHeads(const AttentionArgs& args, int n_threads);
// Call before the first batch: requests the shared memory of decode batches. FailedPrecondition:
// fewer of their thread blocks run on a multiprocessor than its shared memory holds, so decoding
// would be slow.
absl::Status PrepareAttendCuda(DeviceContext& context, const AttentionBlocks& blocks);
// AttendCpu and AttendCuda with hooks, each of which may be null. prepare runs before tokens are
// stored: on the CPU for every tile, in the thread of its head; on CUDA for every wave. update runs
// after the last token of a span: on CUDA after every wave. after runs when a tile's tokens are
// done.
void AttendTilesCpu(DeviceContext& context, const AttentionArgs& args,
                    const std::function<void(const TileTokens&)>& prepare,
                    const std::function<void(const FullChunk&, int thread)>& update,
                    const std::function<void(const TileTokens&, int thread)>& after = {});
void AttendWavesCuda(DeviceContext& context, const AttentionArgs& args,
                     const std::function<void(const DeviceWave&)>& prepare,
                     const std::function<void(const DeviceWave&)>& update);

}  // namespace ovq::kernels
