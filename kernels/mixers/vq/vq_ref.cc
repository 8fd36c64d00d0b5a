// The ground truth of attention over a codebook, OVQ paper eq. 3-6, in double. Of one head, with
// codes C [n_codes, head_dim], counts c, mean values V [n_codes, value_head_dim] and the chunk's
// keys as codes:
//   o_t = softmax([q_t C^T + ln c | q_t C_z^T]) [V | V_z],  z(k) = argmin_j |k - C_j|
// and at the chunk's end  V_j += sum (v_i - V_j) / c_j  over the values whose key has code j.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace {

struct Token {
  const VqArgs& args;
  VqHead head;
  int kv_head;
  int64_t row;
  int offset;  // in the chunk of 64
};

const float* CodeBlock(const Token& token, int64_t block) {
  const Codebook& book = token.args.codebook;
  return book.keys.as<const float>() +
         (token.kv_head * book.blocks() + block) * kBlockSlots * token.args.shape.head_dim;
}

// argmin |key - code|^2 = argmax key . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const Token& token, const float* key) {
  const Codebook& book = token.args.codebook;
  double best = -std::numeric_limits<double>::infinity();
  int32_t nearest = 0;
  for (int64_t j = 0; j < book.n_codes; ++j) {
    const double score =
        DotSlotRef(key, CodeBlock(token, j / kBlockSlots), DType::kF32, token.args.shape.head_dim,
                   static_cast<int>(j % kBlockSlots)) -
        book.half_norm.as<float>()[token.kv_head * book.blocks() * kBlockSlots + j];
    if (score > best) {
      best = score;
      nearest = static_cast<int32_t>(j);
    }
  }
  return nearest;
}

std::vector<SlotRef> VisibleSlots(const Token& token, int value_stride) {
  std::vector<SlotRef> slots;
  for (int64_t j = 0; j < token.args.codebook.n_codes; ++j) {
    if (token.head.counts[j] == 0) continue;
    slots.push_back({CodeBlock(token, j / kBlockSlots),
                     token.head.values + j / kBlockSlots * kBlockSlots * value_stride,
                     static_cast<int>(j % kBlockSlots),
                     std::log(static_cast<double>(token.head.counts[j]))});
  }
  return slots;
}

void PassToken(const Token& token) {
  const AttentionShape& shape = token.args.shape;
  const AttentionRows& rows = token.args.rows;
  const int value_stride = ValueStride(shape.value_head_dim);
  const int64_t row = token.row * rows.stride;
  token.head.pending_code[token.offset] =
      NearestCode(token, rows.k + row + int64_t{token.kv_head} * shape.head_dim);
  StoreValue(rows.v + row + int64_t{token.kv_head} * shape.value_head_dim, shape.value_head_dim,
             value_stride, DType::kF32, token.head.pending_values, token.offset);

  // The chunk's keys as codes, in a block of their own beside their values.
  std::vector<float> pending_keys(static_cast<size_t>(shape.head_dim) * kBlockSlots);
  std::vector<float> code(static_cast<size_t>(shape.head_dim));
  std::vector<SlotRef> slots = VisibleSlots(token, value_stride);
  for (int i = 0; i <= token.offset; ++i) {
    const int32_t j = token.head.pending_code[i];
    LoadKey(CodeBlock(token, j / kBlockSlots), DType::kF32, shape.head_dim, j % kBlockSlots,
            code.data());
    StoreKey(code.data(), shape.head_dim, DType::kF32, pending_keys.data(), i);
    slots.push_back({pending_keys.data(), token.head.pending_values, i, 0});
  }
  AttendHeadsRef(shape, rows, token.row, token.kv_head, slots, DType::kF32);
}

void MergeChunk(const Token& token) {
  const int dv = token.args.shape.value_head_dim, value_stride = ValueStride(dv);
  for (int64_t j = 0; j < token.args.codebook.n_codes; ++j) {
    std::vector<int> members;
    for (int i = 0; i < kVqChunk; ++i) {
      if (token.head.pending_code[i] == j) members.push_back(i);
    }
    if (members.empty()) continue;
    uint32_t& count = token.head.counts[j];
    count = static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{count} + members.size(), std::numeric_limits<uint32_t>::max()));
    token.head.log_counts[j] = std::log(static_cast<float>(count));
    for (int c = 0; c < dv; ++c) {
      float& mean = token.head.values[j * value_stride + c];
      double sum = 0;
      for (int i : members) {
        sum += static_cast<double>(token.head.pending_values[i * value_stride + c]) - mean;
      }
      mean = static_cast<float>(mean + sum / count);
    }
  }
}

}  // namespace

void VqAttentionRef(DeviceContext&, const VqArgs& args) {
  ForEachTokenRef(args.seqs, args.shape.n_kv_heads, [&](const TokenRef& at) {
    const Token token = {.args = args,
                         .head = args.state.Head(at.session, args.where, at.kv_head),
                         .kv_head = at.kv_head,
                         .row = at.row,
                         .offset = static_cast<int>(at.position % kVqChunk)};
    PassToken(token);
    if (token.offset + 1 == kVqChunk) MergeChunk(token);
  });
}

}  // namespace ovq
