#include "kernels/mixers/batch_sequences.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/packer.h"

namespace ovq::kernels {
namespace {

template <class T>
void Copy(std::span<const T> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

// The number of entries of LiveSlots for a sequence: one for the beginning of each period touched,
// and one for the end of the last. A replayed batch has the same number whatever its positions.
int32_t Stride(const BatchSequences& seqs, int64_t period) {
  return seqs.n_tokens() == 0 ? 0 : CountWaves(seqs, period) + 1;
}

// Evaluates the law and the cap of each part, from the period of each sequence's first token on.
void Evaluate(const Growth& growth, const BatchSequences& seqs, int32_t stride, int32_t* slots,
              int32_t* caps) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    const int64_t begin = seqs.start_pos[s] / growth.period * growth.period, cap = seqs.slot_cap[s];
    for (int part = 0; part < growth.parts(); ++part) {
      *caps++ = static_cast<int32_t>(growth.HeadSlotCap(cap, part));
      for (int32_t i = 0; i < stride; ++i) {
        *slots++ = static_cast<int32_t>(growth.LiveAt(begin + i * growth.period, cap, part));
      }
    }
  }
}

}  // namespace

int32_t BatchSequences::max_sequence_length() const {
  int32_t longest = 0;
  for (int s = 0; s < n_seqs(); ++s) longest = std::max(longest, sequence_length(s));
  return longest;
}

bool BatchSequences::one_token_each() const {
  for (int s = 0; s < n_seqs(); ++s) {
    if (sequence_length(s) != 1) return false;
  }
  return true;
}

int CountWaves(const BatchSequences& seqs, int64_t span) {
  if (seqs.n_tokens() == 0) return 0;
  if (span == 0 || seqs.one_token_each()) return 1;
  int64_t most = 1;
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    if (seqs.sequence_length(s) == 0) continue;
    most = std::max(most, (seqs.end_pos(s) - 1) / span - seqs.start_pos[s] / span + 1);
  }
  return static_cast<int>(most);
}

TensorView BatchTensors::Put(std::string_view name, DType dtype, const Shape& shape) {
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeBytes(dtype);
  const TensorView view = {scope_.Allocate<std::byte>(bytes), dtype, shape};
  Check(tensors_.emplace(name, view).second, "BatchTensors: a name is put once a batch");
  return view;
}

TensorView BatchTensors::Get(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? TensorView{} : found->second;
}

StagedBatch StageBatch(DeviceContext& context, const BatchSequences& seqs,
                       std::span<const Growth> growths, std::span<const int32_t> token_ids,
                       std::span<const int32_t> logits_indices) {
  const auto n_seqs = static_cast<size_t>(seqs.n_seqs()),
             n_tokens = static_cast<size_t>(seqs.n_tokens());
  StagedBatch staged = {.seqs = seqs, .live = {}, .token_ids = {}, .logits_indices = {}};
  int64_t end = 0;
  for (int s = 0; s < seqs.n_seqs(); ++s) end = std::max(end, seqs.end_pos(s));
  if (seqs.end_bound == 0) staged.seqs.end_bound = end;
  if (seqs.slot_cap_bound == 0 && n_seqs > 0) {
    staged.seqs.slot_cap_bound = *std::ranges::max_element(seqs.slot_cap);
  }

  Packer packer;
  const size_t state = packer.Add<std::byte*>(n_seqs);
  const size_t start_pos = packer.Add<int64_t>(n_seqs);
  const size_t positions = packer.Add<int64_t>(n_tokens);
  const size_t token_begin = packer.Add<int32_t>(n_seqs + 1);
  std::vector<size_t> live, caps;
  for (const Growth& growth : growths) {
    const int32_t stride = growth.capped() ? Stride(seqs, growth.period) : 0;
    const size_t parts = n_seqs * growth.shares.size();
    live.push_back(packer.Add<int32_t>(parts * static_cast<size_t>(stride)));
    caps.push_back(packer.Add<int32_t>(growth.capped() ? parts : 0));
    staged.live.push_back({.parts = growth.parts(), .stride = stride});
  }
  const size_t ids = packer.Add<int32_t>(token_ids.size());
  const size_t rows = packer.Add<int32_t>(logits_indices.size());

  std::byte* host = context.Staging(packer.bytes());
  Copy(seqs.state, host + state);
  Copy(seqs.start_pos, host + start_pos);
  Copy(seqs.token_begin, host + token_begin);
  Copy(token_ids, host + ids);
  Copy(logits_indices, host + rows);
  auto* position = reinterpret_cast<int64_t*>(host + positions);
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    for (int32_t i = 0; i < seqs.sequence_length(s); ++i) *position++ = seqs.start_pos[s] + i;
  }
  for (size_t i = 0; i < growths.size(); ++i) {
    if (!growths[i].capped()) continue;
    Evaluate(growths[i], seqs, staged.live[i].stride, reinterpret_cast<int32_t*>(host + live[i]),
             reinterpret_cast<int32_t*>(host + caps[i]));
  }

  std::byte* device = context.SendStaging(packer.bytes());
  for (size_t i = 0; i < growths.size(); ++i) {
    if (!growths[i].capped()) continue;
    staged.live[i].slots = reinterpret_cast<int32_t*>(device + live[i]);
    staged.live[i].caps = reinterpret_cast<int32_t*>(device + caps[i]);
    staged.live[i].bound = static_cast<int32_t>(growths[i].MostLiveAt(
        staged.seqs.end_bound + growths[i].period, staged.seqs.slot_cap_bound));
  }
  staged.seqs.live = staged.live;
  staged.seqs.device = {.token_begin = reinterpret_cast<int32_t*>(device + token_begin),
                        .start_pos = reinterpret_cast<int64_t*>(device + start_pos),
                        .state = reinterpret_cast<std::byte**>(device + state),
                        .positions = reinterpret_cast<int64_t*>(device + positions)};
  staged.token_ids = {reinterpret_cast<int32_t*>(device + ids), token_ids.size()};
  staged.logits_indices = {reinterpret_cast<int32_t*>(device + rows), logits_indices.size()};
  return staged;
}

}  // namespace ovq::kernels
