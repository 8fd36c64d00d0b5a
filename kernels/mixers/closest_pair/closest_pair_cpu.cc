// Closest-pair attention on the CPU. Of one head, with rows (Dk, Dv, counts c) and the chunk's own
// keys K and values V up to t:
//   o_t = softmax([q_t Dk^T + ln c | q_t K^T]) [Dv | V]
// and, in the thread that attended, what the token's position brings: a candidate joins, the
// closest pairs (i, j) with counts a, b become (a row_i + b row_j) / (a + b).
// A pair is known to the later of the two (bounds and partners), so that a candidate meets all
// others once when it joins, once more when its partner is gone and it comes to the top.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {
namespace {

// One thread's.
struct Buffers {
  CandidateBlock* blocks;  // [blocks of rows and 2 of work]
  float* key;              // [head_dim]
  float* value;            // [value_stride]
  float* other;            // [max(head_dim, value_head_dim)]
  int32_t* slot_of;        // [candidates of the work blocks]
};

Buffers MakeBuffers(ScratchScope& scope, const ClosestPairStep& step) {
  const AttentionShape& shape = step.blocks.shape;
  const int64_t work = 2 * BlocksOf(step.blocks.wave_span);
  return {.blocks = scope.Allocate<CandidateBlock>(
              static_cast<size_t>(BlocksOf(step.blocks.live.bound) + work)),
          .key = scope.Allocate<float>(static_cast<size_t>(shape.head_dim)),
          .value = scope.Allocate<float>(static_cast<size_t>(ValueStride(shape.value_head_dim))),
          .other = scope.Allocate<float>(
              static_cast<size_t>(std::max(shape.head_dim, shape.value_head_dim))),
          .slot_of = scope.Allocate<int32_t>(static_cast<size_t>(work) * kBlockSlots)};
}

// Two candidates, the lower one first.
struct Pair {
  int32_t low, high;
};

template <class T>
class Dictionary {
 public:
  Dictionary(const ClosestPairStep& step, const PairChunk& chunk, const Buffers& buffers)
      : at_{step.blocks, step.places, chunk}, chunk_(chunk), buffers_(buffers) {
    for (int32_t b = 0; b < chunk.n_blocks(); ++b) {
      buffers.blocks[b] = {at_.keys(b), at_.values(b), at_.bounds(b), at_.partners(b)};
    }
    std::fill_n(buffers.value, ValueStride(at_.dv()), 0.0f);
  }

  // What the tokens [from, to) of the chunk bring, once they have attended.
  void Pass(int64_t from, int64_t to) {
    for (int64_t offset = from; offset < to; ++offset) {
      const int64_t position = chunk_.begin + offset;
      for (int64_t i = JoinedAt(position, chunk_.slot_cap);
           i < JoinedAt(position + 1, chunk_.slot_cap); ++i) {
        if (i == 0) FirstSize(position + 1);
        Meet(chunk_.CandidateOf(i));
      }
      for (int64_t merge = chunk_.MergedAt(offset); merge < chunk_.MergedAt(offset + 1); ++merge) {
        if (merge == 0) UpdateSize();
        MergeClosest(merge);
      }
    }
  }

  // The chunk's tokens and merged rows take the places of the rows that are gone, then new ones.
  void EndChunk() {
    FindSlots();
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const int32_t slot = SlotOf(i);
      if (slot >= 0) Move(i, slot);
    }
    for (int32_t slot = 0; slot < chunk_.n_next; ++slot) {
      int32_t& partner = at_.RowPartner(slot);
      if (partner > chunk_.first_token()) partner = SlotOf(partner - 1) + 1;
    }
    for (int32_t b = chunk_.row_blocks(); b < chunk_.n_blocks(); ++b) {
      std::fill_n(at_.partners(b), kBlockSlots, 0);
    }
  }

 private:
  int32_t& SlotOf(int32_t i) const { return buffers_.slot_of[i - chunk_.first_token()]; }

  void Load(int32_t i) const {
    LoadKey(at_.keys(i / kBlockSlots), at_.blocks.dtype, at_.d(), i % kBlockSlots, buffers_.key);
    LoadValueOf(i);
  }
  void LoadValueOf(int32_t i) const {
    LoadValue(at_.values(i / kBlockSlots), at_.blocks.dtype, at_.dv(), ValueStride(at_.dv()),
              i % kBlockSlots, buffers_.value);
  }
  double Size(int32_t i) const {
    LoadValueOf(i);
    return SquaredNormCpu(buffers_.value, ValueStride(at_.dv()));
  }

  // V from the sequence's first n tokens.
  void FirstSize(int64_t n) const {
    double sum = 0;
    for (int64_t token = 0; token < n; ++token) sum += Size(chunk_.CandidateOf(token));
    at_.value_size() = static_cast<float>(sum / static_cast<double>(n));
  }

  // V from the candidates, if it is far from theirs: bounds are then no more than that.
  void UpdateSize() const {
    double sum = 0;
    int64_t n = 0;
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      sum += Size(i);
      ++n;
    }
    const auto size = static_cast<float>(sum / static_cast<double>(std::max<int64_t>(n, 1)));
    const float old = at_.value_size(), old_scale = at_.ValueScale();
    if (size <= old * kPairSizeChange && old <= size * kPairSizeChange) return;
    at_.value_size() = size;
    const float shrink = ShrinkOfBounds(old_scale, at_.ValueScale());
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      at_.Bound(i) *= shrink;
      at_.Partner(i) = kStalePartner;
    }
  }

  // Bound and partner of a candidate from all others.
  void Meet(int32_t i) const {
    Load(i);
    const Nearest nearest =
        FindNearestCpu({.dtype = at_.blocks.dtype,
                        .head_dim = at_.d(),
                        .value_stride = ValueStride(at_.dv()),
                        .blocks = {buffers_.blocks, static_cast<size_t>(chunk_.n_blocks())},
                        .value_scale = at_.ValueScale(),
                        .key = buffers_.key,
                        .value = buffers_.value,
                        .self = i});
    at_.Bound(i) = nearest.distance;
    at_.Partner(i) = nearest.candidate < 0 ? kStalePartner : nearest.candidate + 1;
  }

  // The candidate with the lowest bound, ties to the lowest; -1 if none is finite.
  int32_t LowestBound() const {
    float lowest = std::numeric_limits<float>::infinity();
    int32_t candidate = -1;
    for (int32_t b = 0; b < chunk_.n_blocks(); ++b) {
      const float* bounds = buffers_.blocks[b].bounds;
      const int32_t* partners = buffers_.blocks[b].partners;
      for (int s = 0; s < kBlockSlots; ++s) {
        if (bounds[s] < lowest && partners[s] != 0) {
          lowest = bounds[s];
          candidate = b * kBlockSlots + s;
        }
      }
    }
    return candidate;
  }

  // None if there are not two candidates. Distances that are no numbers, which only broken weights
  // give, count as the largest.
  std::optional<Pair> Closest() const {
    for (int32_t i; (i = LowestBound()) >= 0;) {
      const int32_t partner = at_.Partner(i) - 1;
      if (partner >= 0) return Pair{std::min(i, partner), std::max(i, partner)};
      Meet(i);
    }
    Pair first = {-1, -1};
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      if (first.low >= 0) return Pair{first.low, i};
      first.low = i;
    }
    return std::nullopt;
  }

  int32_t FirstFreeMean() const {
    int32_t i = chunk_.first_merged();
    while (at_.Partner(i) != 0) ++i;
    return i;
  }

  // The candidate is one no more; it may have been the partner of others.
  void Leave(int32_t i) const {
    at_.Partner(i) = 0;
    for (int32_t b = 0; b < chunk_.n_blocks(); ++b) {
      int32_t* partners = buffers_.blocks[b].partners;
      for (int s = 0; s < kBlockSlots; ++s) {
        partners[s] = partners[s] == i + 1 ? kStalePartner : partners[s];
      }
    }
  }

  void MergeClosest(int64_t merge) const {
    const std::optional<Pair> pair = Closest();
    if (!pair) return;
    const uint32_t low = at_.Count(pair->low), high = at_.Count(pair->high);
    Leave(pair->low);
    Leave(pair->high);
    const int32_t mean = FirstFreeMean();
    const float share = ShareOf(low, high);
    T *key = at_.Key(mean), *value = at_.Value(mean);
    Mean(at_.Key(pair->low), at_.Key(pair->high), kBlockSlots, at_.d(), share);
    RoundRow(buffers_.other, at_.d(), at_.Rounding(merge, /*is_value=*/false), key, kBlockSlots);
    Mean(at_.Value(pair->low), at_.Value(pair->high), 1, at_.dv(), share);
    RoundRow(buffers_.other, at_.dv(), at_.Rounding(merge, /*is_value=*/true), value, 1);
    at_.counts(mean / kBlockSlots)[mean % kBlockSlots] = SumOfCounts(low, high);
    Meet(mean);
  }

  // To buffers.other; channels are `stride` apart.
  void Mean(const T* low, const T* high, int stride, int n, float share) const {
    for (int c = 0; c < n; ++c) {
      buffers_.other[c] = MeanOf(ToFloat(low[static_cast<ptrdiff_t>(c) * stride]),
                                 ToFloat(high[static_cast<ptrdiff_t>(c) * stride]), share);
    }
  }

  // The first slot from `slot` on that takes a row at the chunk's end.
  int32_t NextFree(int32_t slot) const {
    while (slot < chunk_.n_rows && at_.Partner(slot) != 0) ++slot;
    return slot;
  }

  // The slots of what the chunk leaves in its work blocks, -1 for what is gone. Without merges all
  // tokens are left, whether they have joined or not.
  void FindSlots() const {
    const bool merges = chunk_.n_merges() > 0;
    int32_t free = merges ? NextFree(0) : chunk_.n_rows;
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const bool stays = merges ? at_.Partner(i) != 0 : i - chunk_.first_token() < chunk_.length;
      SlotOf(i) = stays ? free : -1;
      if (stays) free = NextFree(free + 1);
    }
  }

  // A candidate of the work blocks becomes row `slot`.
  void Move(int32_t i, int32_t slot) const {
    const AttentionBlocks& blocks = at_.blocks;
    const int s = slot % kBlockSlots, stride = ValueStride(at_.dv());
    T* key = at_.template Row<T>(blocks.dictionary_keys.place, slot) + s;
    for (int c = 0; c < at_.d(); ++c) key[c * kBlockSlots] = at_.Key(i)[c * kBlockSlots];
    std::copy_n(at_.Value(i), stride,
                at_.template Row<T>(blocks.dictionary_values.place, slot) + s * stride);
    at_.template Row<uint32_t>(blocks.counts, slot)[s] = at_.Count(i);
    at_.template Row<float>(blocks.log_counts, slot)[s] =
        std::log(static_cast<float>(at_.Count(i)));
    at_.template Row<float>(at_.places.rows.bounds, slot)[s] = at_.Bound(i);
    at_.RowPartner(slot) = at_.Partner(i);
  }

  const PairBlocks<T> at_;
  const PairChunk& chunk_;
  const Buffers& buffers_;
};

template <class T>
void PassTile(const ClosestPairStep& step, const TileRows& tile, const Buffers& buffers) {
  const StepSeqs& seqs = step.seqs;
  const int s = tile.sequence, length = step.blocks.wave_span;
  const int64_t start = seqs.start_pos[s],
                begin = start + tile.row - seqs.row_begin[s] - tile.element,
                wave = begin / length - start / length, end = tile.element + tile.n_tokens;
  const PairChunk chunk = {.session = tile.session,
                           .kv_head = tile.kv_head,
                           .begin = begin,
                           .length = length,
                           .slot_cap = seqs.slot_cap[s],
                           .n_rows = tile.n_live,
                           .n_next = step.blocks.LiveAt(s, wave + 1)};
  const bool joins = JoinedAt(begin + end, chunk.slot_cap) > 0, ends = end == length;
  if (!joins && !ends) return;
  Dictionary<T> dictionary(step, chunk, buffers);
  if (joins) dictionary.Pass(tile.element, end);
  if (ends) dictionary.EndChunk();
}

}  // namespace

void ClosestPairCpu(DeviceContext& context, const ClosestPairStep& step) {
  ScratchScope scope(context);
  std::vector<Buffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakeBuffers(scope, step));
  AttendTilesCpu(context, step, {}, {}, [&](const TileRows& tile, int thread) {
    if (step.blocks.dtype == DType::kBF16) {
      PassTile<BF16>(step, tile, buffers[thread]);
    } else {
      PassTile<float>(step, tile, buffers[thread]);
    }
  });
}

}  // namespace ovq
