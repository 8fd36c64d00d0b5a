#include "kernels/mixers/stage.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/packer.h"

namespace ovq {
namespace {

template <class T>
void Copy(std::span<const T> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

}  // namespace

StagedStep StageStep(DeviceContext& context, const StepSeqs& seqs,
                     std::span<const int32_t> token_ids, std::span<const int32_t> logit_rows) {
  const auto n_seqs = static_cast<size_t>(seqs.n_seqs()),
             n_rows = static_cast<size_t>(seqs.n_rows());
  Packer packer;
  const size_t state = packer.Add<std::byte*>(n_seqs);
  const size_t start_pos = packer.Add<int64_t>(n_seqs);
  const size_t positions = packer.Add<int64_t>(n_rows);
  const size_t row_begin = packer.Add<int32_t>(n_seqs + 1);
  const size_t slot_cap = packer.Add<int32_t>(n_seqs);
  const size_t ids = packer.Add<int32_t>(token_ids.size());
  const size_t rows = packer.Add<int32_t>(logit_rows.size());

  std::byte* host = context.Staging(packer.bytes());
  Copy(seqs.state, host + state);
  Copy(seqs.start_pos, host + start_pos);
  Copy(seqs.row_begin, host + row_begin);
  Copy(seqs.slot_cap, host + slot_cap);
  Copy(token_ids, host + ids);
  Copy(logit_rows, host + rows);
  StagedStep staged = {.seqs = seqs, .token_ids = {}, .logit_rows = {}};
  auto* position = reinterpret_cast<int64_t*>(host + positions);
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    const int32_t n = seqs.row_begin[s + 1] - seqs.row_begin[s];
    for (int32_t i = 0; i < n; ++i) *position++ = seqs.start_pos[s] + i;
    if (seqs.end_bound == 0) {
      staged.seqs.end_bound = std::max(staged.seqs.end_bound, seqs.start_pos[s] + n);
    }
    if (seqs.slot_cap_bound == 0) {
      staged.seqs.slot_cap_bound = std::max(staged.seqs.slot_cap_bound, seqs.slot_cap[s]);
    }
  }
  std::byte* device = context.SendStaging(packer.bytes());
  staged.seqs.device = {.row_begin = reinterpret_cast<int32_t*>(device + row_begin),
                        .start_pos = reinterpret_cast<int64_t*>(device + start_pos),
                        .slot_cap = reinterpret_cast<int32_t*>(device + slot_cap),
                        .state = reinterpret_cast<std::byte**>(device + state),
                        .positions = reinterpret_cast<int64_t*>(device + positions)};
  staged.token_ids = {reinterpret_cast<int32_t*>(device + ids), token_ids.size()};
  staged.logit_rows = {reinterpret_cast<int32_t*>(device + rows), logit_rows.size()};
  return staged;
}

}  // namespace ovq
