// Reference implementation of KeyDiff attention: at a chunk's end it evicts one token after another
// as long as there are too many, in plain loops and double precision. It shares the state's layout
// with the other devices, but no code that decides or computes.
//   o = softmax([beta q Dk^T, beta q K^T]) [Dv; V]
//   evicted: argmax cos(k_i, sum_j k_j / |k_j|), of equal ones the newest; never one of the first
//   min(pinned_tokens, cap / 4) tokens or of the newest min(recent_tokens, cap / 2)
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/key_diff/key_diff.h"
#include "tests/reference/mixers/attention_ref.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

struct RowRef {
  std::vector<float> key, value;
  double likeness = 0;
};

RowRef LoadRow(const AttentionArgs& args, const SlotRef& at) {
  const AttentionShape& shape = args.blocks.shape;
  RowRef row = {std::vector<float>(static_cast<size_t>(shape.head_dim)),
                std::vector<float>(static_cast<size_t>(shape.value_head_dim))};
  LoadKey(at.keys, args.blocks.dtype, shape.head_dim, at.slot, row.key.data());
  LoadValue(at.values, args.blocks.dtype, shape.value_head_dim, ValueStride(shape.value_head_dim),
            at.slot, row.value.data());
  return row;
}

double Norm(const std::vector<float>& key) {
  double squares = 0;
  for (const double x : key) squares += x * x;
  return std::max(std::sqrt(squares), 1e-12);
}

void SetLikeness(std::vector<RowRef>& rows) {
  std::vector<double> mean(rows.front().key.size());
  for (const RowRef& row : rows) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += row.key[c] / Norm(row.key);
  }
  for (RowRef& row : rows) {
    for (size_t c = 0; c < mean.size(); ++c) row.likeness += row.key[c] * mean[c] / Norm(row.key);
  }
}

void EndChunk(const KeyDiffArgs& args, const TokenRef& token, int64_t n_slots, int64_t n_next) {
  const AttentionShape& shape = args.blocks.shape;
  std::vector<RowRef> rows;
  for (int64_t j = 0; j < n_slots; ++j) {
    rows.push_back(LoadRow(args, DictionarySlotRef(args, token, j)));
  }
  for (int i = 0; i < args.blocks.wave_span; ++i) {
    rows.push_back(LoadRow(args, RecentSlotRef(args, token, i)));
  }
  SetLikeness(rows);
  if (std::ssize(rows) > n_next) {  // so n_next is the cap
    const int64_t pinned = std::min<int64_t>(args.rule.pinned_tokens, n_next / 4),
                  recent = std::min<int64_t>(args.rule.recent_tokens, n_next / 2);
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      if (i < pinned || i >= std::ssize(rows) - recent) {
        rows[i].likeness = -std::numeric_limits<double>::infinity();
      }
    }
  }
  while (std::ssize(rows) > n_next) {
    const auto last_largest =
        std::max_element(rows.rbegin(), rows.rend(),
                         [](const RowRef& a, const RowRef& b) { return a.likeness < b.likeness; });
    rows.erase(std::next(last_largest).base());
  }
  for (int64_t j = 0; j < n_next; ++j) {
    const int64_t block = j / kBlockSlots;
    const auto at = [&](const BlockPlaces& in) {
      return in.place.At(token.session, token.kv_head, block);
    };
    const int slot = static_cast<int>(j % kBlockSlots);
    StoreKey(rows[j].key.data(), shape.head_dim, args.blocks.dtype, at(args.blocks.dictionary_keys),
             slot);
    StoreValue(rows[j].value.data(), shape.value_head_dim, ValueStride(shape.value_head_dim),
               args.blocks.dtype, at(args.blocks.dictionary_values), slot);
  }
}

}  // namespace

void KeyDiffRef(DeviceContext&, const KeyDiffArgs& args) {
  ForEachTokenRef(args, [&](const TokenRef& token) {
    const int64_t length = args.blocks.wave_span, begin = token.position / length * length,
                  cap = args.blocks.live.HeadSlotCap(token.sequence, token.kv_head),
                  n_slots = std::min(begin, cap);
    const auto offset = static_cast<int>(token.position - begin);
    StoreTokenRef(args, token, KeyRef(args, token), offset);
    std::vector<SlotRef> slots;
    for (int64_t j = 0; j < n_slots; ++j) slots.push_back(DictionarySlotRef(args, token, j));
    for (int i = 0; i <= offset; ++i) slots.push_back(RecentSlotRef(args, token, i));
    AttendTokenRef(args, token, slots);
    if (offset + 1 == length) {
      EndChunk(args, token, n_slots, std::min(begin + length, cap));
    }
  });
}

const ReferenceOf<KeyDiffCpu> kKeyDiff = KeyDiffRef;

}  // namespace ovq::kernels
