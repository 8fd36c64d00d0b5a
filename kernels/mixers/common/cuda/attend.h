// Attention over blocks of 64 slots on CUDA: one set of kernels for the softmax, ovq and vq mixers,
// which only say where their blocks lie. Same block layout as block_attention.h.
//
// A step is done in waves (step.h), so that a chunk's update lies between two of them and no slot
// of a ring is overwritten before the rows that still see it are done.
//
// Bits. A row meets its blocks in groups of kSegmentBlocks; each group is an online softmax of its
// own, (max, sum, acc), and the groups are merged from the first to the last. So a group may be
// done by a thread block of its own (decode: split over the dictionary) or one after another by the
// same (prefill) with the same result, and a row's bits depend on nothing but the row.
#pragma once

#include <cstdint>

#include "kernels/common/device.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/mixer.h"

namespace ovq::cuda {

inline constexpr int kSegmentBlocks = 4;

// Block i of kv head h of sequence s lies at
//   (shared ? shared + s * seq_stride : the session's state) + offset + h * head_stride +
//   (ring > 0 ? i % ring : i) * block_stride
struct BlockPlaces {
  std::byte* shared = nullptr;  // device memory outside the sessions' states
  int64_t seq_stride = 0;       // bytes, as all of these
  int64_t offset = 0;
  int64_t head_stride = 0;
  int64_t block_stride = 0;
  int32_t ring = 0;
};

inline BlockPlaces InState(const StatePlace& place, int32_t ring = 0) {
  return {.shared = nullptr,
          .seq_stride = 0,
          .offset = static_cast<int64_t>(place.offset),
          .head_stride = static_cast<int64_t>(place.head_stride),
          .block_stride = static_cast<int64_t>(place.index_stride),
          .ring = ring};
}

// What the rows of a mixer meet: `live` dictionary slots, then the recent tokens.
struct AttentionBlocks {
  AttentionShape shape;
  DType dtype = DType::kF32;  // of keys and values in the blocks
  DType compute_dtype =
      DType::kF32;  // kBF16: q and k hold bfloat16 values, tensor cores may be used

  // Positions with equal floor(t / wave_span) make a wave; 0: all rows of a step do.
  int32_t wave_span = 0;

  // Dictionary: slots 0, 1, ... each with a bias added to its score; as many as `live` says at the
  // begin of a row's span, or fixed_live where that has no slots.
  LiveSlots live = {};
  int32_t fixed_live = 0;
  BlockPlaces dictionary_keys, dictionary_values, dictionary_bias;

  // Recent tokens: position t in slot (t - origin) % 64 of block (t - origin) / 64, where origin is
  // 0 or, with recent_from_span, the begin of t's wave_span. A query meets the blocks up to its
  // own: all from block 0 on, or with a ring the newest `ring` of them; in them the positions up to
  // its own, `window` of them if that is not 0.
  bool recent_from_span = false;
  int32_t window = 0;
  BlockPlaces recent_keys, recent_values;

  // For every row's key: the dictionary slot with the highest k . key (no bias) and that product,
  // ties to the lowest slot, to element t % wave_span of kv head h; 0 and -infinity if there is no
  // dictionary. Float and int32 in the session's state.
  bool probe = false;
  BlockPlaces best_score, best_slot;  // block_stride is that of one element
};

// Writes the keys (unless keys_too is false) and values of a wave's rows to their recent slots,
// rounded to nearest.
void StoreRecent(DeviceContext& context, const AttentionBlocks& blocks, const StepSeqs& seqs,
                 const AttentionRows& rows, int wave, bool keys_too = true);

// Whether a tile's segments are split over thread blocks. No bit depends on it.
enum class Split : uint8_t { kAuto, kAlways, kNever };

// rows.out of a wave's rows, and their probes.
void AttendWave(DeviceContext& context, const AttentionBlocks& blocks, const StepSeqs& seqs,
                const AttentionRows& rows, int wave, Split split = Split::kAuto);

}  // namespace ovq::cuda
