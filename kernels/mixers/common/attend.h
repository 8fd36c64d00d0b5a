// Attention over blocks of 64 slots (block_attention.h), on the CPU and on CUDA: what the softmax,
// ovq and vq mixers share. They only say where their blocks lie and what the end of a chunk does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/device.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// Where block i of a kv head lies: in the session's state, or in memory that the mixer shares out
// among the sequences of a batch.
struct BlockPlaces {
  StatePlace place = {};
  int32_t ring = 0;             // > 0: block i lies where i % ring does
  std::byte* shared = nullptr;  // in place of the state: `seq_stride` bytes for every sequence
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

// What the end of a span that is full does to the dictionary (chunk_update.h).
enum class Merge : uint8_t { kNothing, kValues, kKeysAndValues };

// What the rows of a mixer meet: `live` dictionary slots, then the recent tokens.
struct AttentionBlocks {
  AttentionShape shape;
  DType dtype = DType::kF32;  // of keys and values in the blocks
  DType compute_dtype =
      DType::kF32;  // kBF16: q and k hold bfloat16 values, tensor cores may be used

  // Positions with equal floor(t / wave_span) make a wave; 0: all rows of a batch do.
  int32_t wave_span = 0;

  // Dictionary: slots 0, 1, ... each with a bias (if it has a place) added to its score; as many as
  // `live` says at the begin of a row's span, or fixed_live where that has no slots.
  LiveSlots live = {};
  int32_t fixed_live = 0;
  BlockPlaces dictionary_keys, dictionary_values, dictionary_bias;

  // Recent tokens: position t in slot (t - origin) % 64 of block (t - origin) / 64, where origin is
  // 0 or, with recent_spans, the begin of the first of so many spans that end with t's, less
  // recent_sinks: the slots before that span then hold the sequence's first tokens, which stay when
  // others leave (slide.h). A query meets the blocks up to its own: all from block 0 on, or with a
  // ring the newest `ring` of them; in them the positions up to its own, `window` of them if that
  // is not 0. Keys outside the state are the mixer's to fill.
  int32_t recent_spans = 0;
  int32_t recent_sinks = 0;
  const float* recent_key_scale = nullptr;  // [n_kv_heads] of keys as they are stored; null: 1
  int32_t window = 0;
  BlockPlaces recent_keys, recent_values;

  // The dictionary slot that the key at t is nearest to: element t % wave_span of kv head h. With
  // `probe` attention finds it: the slot with the highest k . key (no bias) and that product, ties
  // to the lowest slot; 0 and -infinity if there is no dictionary. Index: of an element.
  bool probe = false;
  StatePlace best_score, best_slot;  // float, int32

  Merge merge = Merge::kNothing;
  // Merged means are divided by their norms: keys and values, with a delta rule keys alone.
  bool normalizes = false;
  // Delta rule, [n_kv_heads] in the device's memory, or null. What a key times this reads of the
  // slots that are live at the begin of its span (their biases included; 0 if there are none) is
  // taken from its value, and a slot's value gains the sum of what is left over the count.
  const float* delta_scale = nullptr;
  int32_t layer = 0;              // only the random numbers of merged means depend on it
  StatePlace counts, log_counts;  // [64] of every dictionary block: uint32, float

  // Of a sequence's kv head, at the begin of its wave-th wave.
  constexpr int32_t LiveAt(int sequence, int kv_head, int64_t wave) const {
    return live.slots == nullptr ? fixed_live : live.At(sequence, kv_head, wave);
  }
  constexpr float KeyScale(int kv_head) const {
    return recent_key_scale == nullptr ? 1.0f : recent_key_scale[kv_head];
  }
  constexpr bool has_bias() const { return dictionary_bias.place.index_stride > 0; }
  constexpr int32_t ring() const {
    return recent_keys.ring > 0 ? recent_keys.ring : recent_values.ring;
  }
  constexpr int64_t span_begin(int64_t position) const {
    return wave_span > 0 ? position / wave_span * wave_span : 0;
  }
  constexpr int64_t origin(int64_t position) const {
    const int64_t begin =
        span_begin(position) - (recent_spans - 1) * int64_t{wave_span} - recent_sinks;
    return recent_spans > 0 && begin > 0 ? begin : 0;
  }
};

// The most blocks that a row of these sequences meets.
int64_t MostBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs);

// The bytes of these tokens' recent slots, and of what is kept of their nearest slots. Places that
// are not set are not in the state.
std::vector<StateExtent> RecentExtents(const AttentionBlocks& blocks, const TokenRange& tokens);

// One head of a session at the end of a span: the dictionary grows from n_old to n_next slots.
struct FullChunk {
  std::byte* session;
  int kv_head;
  int64_t chunk;
  int32_t n_old, n_next;
};

struct AttentionArgs {
  const AttentionBlocks& blocks;
  const BatchSequences& seqs;
  const AttentionTensors& rows;
};

// Rows of one kv head of one sequence whose tokens lie in one recent block: they meet the same
// blocks.
struct TileTokens {
  int sequence;
  int kv_head;
  std::byte* session;
  int64_t row;      // of the first token, as all of these
  int64_t element;  // its place in its span
  int64_t block;    // recent
  int slot;         // in that block
  int n_tokens;
  int32_t n_live;  // dictionary slots
};

// All rows of a batch: stores each one's key and value, fills rows.out, merges the spans that the
// rows fill.
void AttendCpu(DeviceContext& context, const AttentionArgs& args);
void AttendCuda(DeviceContext& context, const AttentionArgs& args);
// Whether AttendCpu's threads share the blocks of a head, because there are too few heads for them
// and enough blocks. No bit depends on it.
bool SharesHeads(const AttentionArgs& args, int n_threads);
// Before the first: asks for the shared memory that decode batches need. FailedPrecondition: fewer
// of their thread blocks than it holds run on a multiprocessor, so that they would be slow.
absl::Status PrepareAttendCuda(DeviceContext& context, const AttentionBlocks& blocks);
// The same with something to do before rows are stored, on the CPU for every tile, in the thread of
// its head; on CUDA for every wave; and after the last row of a span is done, on CUDA after every
// wave. after: when a tile's rows are done. Each may be null.
void AttendTilesCpu(DeviceContext& context, const AttentionArgs& args,
                    const std::function<void(const TileTokens&)>& prepare,
                    const std::function<void(const FullChunk&, int thread)>& update,
                    const std::function<void(const TileTokens&, int thread)>& after = {});
void AttendWavesCuda(DeviceContext& context, const AttentionArgs& args,
                     const std::function<void(int wave)>& prepare,
                     const std::function<void(int wave)>& update);

}  // namespace ovq
