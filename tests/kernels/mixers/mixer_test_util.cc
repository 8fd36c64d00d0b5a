#include "tests/kernels/mixers/mixer_test_util.h"

#include <algorithm>

namespace ovq::test {

MixerInstance::MixerInstance(const MixerCase& c, Device device, int n_threads, int64_t max_tokens)
    : slot_cap_(c.slot_cap),
      compute_dtype_(c.compute_dtype),
      context_(MakeContext(device, n_threads)) {
  context_->BindThread();
  Attrs model, section("section.");
  model.Set("hidden_size", int64_t{kModelDim});
  model.Set("num_attention_heads", int64_t{c.n_heads});
  model.Set("num_key_value_heads", int64_t{c.n_kv_heads});
  model.Set("head_dim", int64_t{c.head_dim});
  model.Set("value_head_dim", int64_t{c.value_head_dim});
  model.Set("sliding_window", int64_t{c.window});
  section.Set("chunk_size", int64_t{c.chunk_len});
  section.Set("max_centroids", int64_t{c.slot_cap});
  section.Set("codebook_size", int64_t{c.slot_cap});
  RandomLayer layer(7);
  const WeightSource source = layer.source();
  auto made = FindMixer(c.type)->make({.layer = 3,
                                       .type = c.type,
                                       .state = {.model = model,
                                                 .section = section,
                                                 .state_dtype = c.state_dtype,
                                                 .device = context_->device()},
                                       .weights = source,
                                       .compute_dtype = c.compute_dtype,
                                       .context = *context_});
  Check(made.ok(), made.ok() ? "" : std::string(made.status().message()).c_str());
  mixer_ = *std::move(made);
  const MixerState& state = mixer_->state();
  where_ = {
      .fixed_offset = 0, .blocks_offset = state.fixed.bytes(), .block_stride = state.block.bytes()};
  const int64_t slots = state.growth.law == Growth::Law::kTokens ? max_tokens : c.slot_cap;
  const int64_t blocks =
      state.growth.law == Growth::Law::kNone ? 0 : (slots + kBlockSlots - 1) / kBlockSlots;
  session_bytes_ = state.fixed.bytes() + static_cast<size_t>(blocks) * state.block.bytes();
}

std::vector<float> MixerInstance::Step(const std::vector<Piece>& pieces) {
  std::vector<float> x;
  std::vector<int32_t> row_begin{0}, caps;
  std::vector<int64_t> start;
  std::vector<std::byte*> state;
  for (const Piece& piece : pieces) {
    x.insert(x.end(), piece.x.begin(), piece.x.end());
    row_begin.push_back(row_begin.back() + static_cast<int32_t>(piece.rows()));
    caps.push_back(slot_cap_);
    start.push_back(piece.start);
    state.push_back(piece.session);
  }
  StepSeqs seqs;
  seqs.row_begin = row_begin;
  seqs.start_pos = start;
  seqs.slot_cap = caps;
  seqs.state = state;
  const Shape shape = {row_begin.back(), kModelDim};
  const std::vector<BF16> narrow = Rounded(x);
  const Buffer x_device = compute_dtype_ == DType::kBF16
                              ? context_->Upload(narrow.data(), narrow.size() * sizeof(BF16))
                              : context_->Upload(x.data(), x.size() * sizeof(float));
  std::vector<float> y(x.size());
  const Buffer y_device = context_->Upload(y.data(), y.size() * sizeof(float));
  mixer_->Forward(StageStep(*context_, seqs).seqs,
                  {.data = x_device.as<void>(), .dtype = compute_dtype_, .shape = shape}, where_,
                  *context_, {.data = y_device.as<void>(), .dtype = DType::kF32, .shape = shape});
  context_->CopyToHost(y.data(), y_device.as<float>(), y.size() * sizeof(float));
  return y;
}

std::vector<float> MixerInstance::Run(MixerSession& session, const std::vector<float>& x,
                                      std::vector<int64_t> cuts, int64_t start) {
  cuts.push_back(static_cast<int64_t>(x.size()) / kModelDim);
  std::vector<float> y;
  int64_t begin = 0;
  for (int64_t end : cuts) {
    if (end == begin) continue;
    const std::vector<float> part = Step({{session.base(), start + begin, Rows(x, begin, end)}});
    y.insert(y.end(), part.begin(), part.end());
    begin = end;
  }
  return y;
}

}  // namespace ovq::test
