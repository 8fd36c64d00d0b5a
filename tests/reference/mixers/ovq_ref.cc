// The reference of OVQ attention, from the paper's equations in plain loops and double precision.
// It shares the state's layout and the number of live centroids (equation 17, Growth) with the
// other devices but no decisions or arithmetic:
//   o = softmax([beta q Dk^T + ln c, beta q K^T]) [Dv; V]               equation 15
//   Dk_j += sum_i (k_i - Dk_j) / c_j over the keys i assigned to j      equations 18, 19
// and the variants of the KVM paper's published code, see README.md.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "tests/reference/mixers/attention_ref.h"

namespace ovq::kernels {
namespace {

// One head at one token.
struct Token {
  const AttentionArgs& args;
  const TokenRef& at;
  int chunk_len;
  int offset;      // index of the token in its chunk
  int64_t n_live;  // centroids at the chunk's beginning
  int64_t n_next;  // centroids at its end

  // q . key of the slot.
  double Dot(const float* q, const SlotRef& slot) const {
    return DotSlotRef(q, slot.keys, args.blocks.dtype, args.blocks.shape.head_dim, slot.slot);
  }
  // The best score and slot of the chunk's key i.
  float& best_score(int i) const {
    return *args.blocks.best_score.At<float>(at.session, at.kv_head, i);
  }
  int32_t& best_slot(int i) const {
    return *args.blocks.best_slot.At<int32_t>(at.session, at.kv_head, i);
  }
};

void FindBestCentroid(const Token& token) {
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_slot = 0;
  for (int64_t j = 0; j < token.n_live; ++j) {
    const double score =
        token.Dot(KeyRef(token.args, token.at), DictionarySlotRef(token.args, token.at, j));
    if (score > best) {
      best = score;
      best_slot = static_cast<int32_t>(j);
    }
  }
  token.best_score(token.offset) = static_cast<float>(best);
  token.best_slot(token.offset) = best_slot;
}

// The similarity of each key of the chunk to the centroid that it could merge into: its best one,
// or key 0 in the first chunk. Key 0 itself then never becomes another centroid.
std::vector<float> Nearness(const Token& token) {
  const AttentionBlocks& blocks = token.args.blocks;
  std::vector<float> nearness, first(static_cast<size_t>(blocks.shape.head_dim));
  const SlotRef key_0 = RecentSlotRef(token.args, token.at, 0);
  LoadKey(key_0.keys, blocks.dtype, blocks.shape.head_dim, key_0.slot, first.data());
  for (int i = 0; i < token.chunk_len; ++i) {
    if (token.n_live > 0) {
      nearness.push_back(token.best_score(i));
    } else if (i == 0) {
      nearness.push_back(std::numeric_limits<float>::infinity());
    } else {
      nearness.push_back(
          static_cast<float>(token.Dot(first.data(), RecentSlotRef(token.args, token.at, i))));
    }
  }
  return nearness;
}

// The centroid of every key: the least similar keys become new ones in turn, ties to the lower
// index; the others go to their best old one.
std::vector<int64_t> Assign(const Token& token) {
  const std::vector<float> nearness = Nearness(token);
  std::vector<int64_t> assignment(static_cast<size_t>(token.chunk_len), -1);
  for (int64_t next = token.n_live == 0 ? 1 : token.n_live; next < token.n_next; ++next) {
    int farthest = -1;
    for (int i = 0; i < token.chunk_len; ++i) {
      if (assignment[i] >= 0) continue;
      if (farthest < 0 || nearness[i] < nearness[farthest]) farthest = i;
    }
    assignment[farthest] = next;
  }
  for (int i = 0; i < token.chunk_len; ++i) {
    if (assignment[i] < 0) assignment[i] = token.n_live == 0 ? 0 : token.best_slot(i);
  }
  return assignment;
}

// Delta rule: the attention output of every key of the chunk, as a query, over the old centroids.
std::vector<std::vector<float>> Predictions(const Token& token) {
  const AttentionBlocks& blocks = token.args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  std::vector<SlotRef> old;
  for (int64_t j = 0; j < token.n_live; ++j) {
    old.push_back(DictionarySlotRef(token.args, token.at, j));
    if (std::isinf(old.back().bias)) old.pop_back();  // ln 0: nothing was ever merged there
  }
  std::vector<std::vector<float>> predictions;
  std::vector<float> key(static_cast<size_t>(d));
  for (int i = 0; i < token.chunk_len; ++i) {
    std::vector<float>& prediction = predictions.emplace_back(dv, 0.0f);
    if (old.empty()) continue;
    const SlotRef from = RecentSlotRef(token.args, token.at, i);
    LoadKey(from.keys, blocks.dtype, d, from.slot, key.data());
    for (float& x : key) x *= blocks.delta_scale[token.at.kv_head];
    AttendSlotsRef(key.data(), old, blocks.dtype, d, dv, prediction.data());
  }
  return predictions;
}

void UpdateDictionary(const Token& token) {
  const AttentionBlocks& blocks = token.args.blocks;
  const bool delta_rule = blocks.delta_scale != nullptr;
  std::vector<std::vector<float>> predictions;
  MergeRuleRef rule = {.normalizes_keys = blocks.normalizes,
                       .normalizes_values = blocks.normalizes && !delta_rule};
  if (delta_rule) {
    predictions = Predictions(token);
    rule.predictions = &predictions;
  }
  const std::vector<int64_t> assignment = Assign(token);
  for (int64_t j = 0; j < token.n_next; ++j) {
    std::vector<int> members;
    for (int i = 0; i < token.chunk_len; ++i) {
      if (assignment[i] == j) members.push_back(i);
    }
    if (members.empty()) continue;
    MergeSlotRef(token.args, token.at, j, members, rule);
    float* log_counts =
        blocks.log_counts.At<float>(token.at.session, token.at.kv_head, j / kBlockSlots);
    log_counts[j % kBlockSlots] = static_cast<float>(BiasRef(token.args, token.at, j));
  }
}

void PassToken(const Token& token) {
  StoreTokenRef(token.args, token.at, KeyRef(token.args, token.at), token.offset);
  std::vector<SlotRef> slots;
  for (int64_t j = 0; j < token.n_live; ++j) {
    slots.push_back(DictionarySlotRef(token.args, token.at, j));
  }
  for (int i = 0; i <= token.offset; ++i) slots.push_back(RecentSlotRef(token.args, token.at, i));
  AttendTokenRef(token.args, token.at, slots);
  if (token.n_live > 0) FindBestCentroid(token);
  if (token.offset + 1 == token.chunk_len) UpdateDictionary(token);
}

}  // namespace

void OvqAttentionRef(const AttentionArgs& args) {
  const int chunk_len = args.blocks.wave_span;
  ForEachTokenRef(args, [&](const TokenRef& at) {
    const int64_t wave = at.position / chunk_len - args.seqs.start_pos[at.sequence] / chunk_len;
    PassToken({.args = args,
               .at = at,
               .chunk_len = chunk_len,
               .offset = static_cast<int>(at.position % chunk_len),
               .n_live = args.blocks.LiveAt(at.sequence, at.kv_head, wave),
               .n_next = args.blocks.LiveAt(at.sequence, at.kv_head, wave + 1)});
  });
}

}  // namespace ovq::kernels
