#include "tests/bench/cuda_model_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/common/device_cuda.h"
#include "kernels/common/device_memory.h"
#include "tests/bench/bench_util.h"
#include "tests/model/new_session.h"

namespace ovq::bench {
namespace {

constexpr int kWarmUpSteps = 8;  // the second use of a shape is recorded as a graph, the third is
                                 // replayed
constexpr double kFloorTarget = 1.35;
constexpr double kUpdateTarget = 0.05;
constexpr double kWorstTarget = 1.5;

kernels::Buffer NewState(kernels::DeviceContext& context, const model::LanguageModel& model) {
  const std::vector<std::byte> state = model::test::NewSession(model.layout());
  return context.Upload(state.data(), state.size());
}

double Mean(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

// Element-wise median of several runs.
std::vector<double> Medians(const std::vector<std::vector<double>>& runs) {
  std::vector<double> medians;
  for (size_t i = 0; i < runs[0].size(); ++i) {
    std::vector<double> values;
    for (const std::vector<double>& run : runs) values.push_back(run[i]);
    medians.push_back(Median(values));
  }
  return medians;
}

}  // namespace

CudaModelBench::CudaModelBench(const model::LanguageModel& model, kernels::DeviceContext& context,
                               const Scale& scale, const Ceilings& ceilings, Report& report)
    : model_(model),
      context_(context),
      scale_(scale),
      ceilings_(ceilings),
      report_(report),
      meter_(context) {}

std::vector<float> CudaModelBench::ComputeLogits(const kernels::Buffer& state,
                                                 std::span<const int32_t> tokens, int64_t begin) {
  model::Batch batch;
  batch.Add(tokens, begin, scale_.slot_cap, state.as<std::byte>(), static_cast<int>(tokens.size()));
  kernels::ScratchScope scope(context_);
  const kernels::TensorView logits = model_.Forward(batch, context_, scope);
  std::vector<float> values(tokens.size() * static_cast<size_t>(model_.config().vocab_size));
  context_.CopyToHost(values.data(), logits.data, values.size() * sizeof(float));
  return values;
}

bool CudaModelBench::SplitKeepsEveryBit() {
  std::vector<int32_t> tokens(static_cast<size_t>(scale_.checked_tokens));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random_() % model_.config().vocab_size);
  }
  const kernels::Buffer whole = NewState(context_, model_), steps = NewState(context_, model_);
  const std::vector<float> expected = ComputeLogits(whole, tokens, 0);
  std::vector<float> logits;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<float> row = ComputeLogits(steps, {&tokens[t], 1}, static_cast<int64_t>(t));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const size_t vocab = logits.size() / tokens.size();
  int64_t differing = 0, first = -1;
  float largest = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const float *a = logits.data() + t * vocab, *b = expected.data() + t * vocab;
    if (std::memcmp(a, b, vocab * sizeof(float)) == 0) continue;
    if (differing++ == 0) first = static_cast<int64_t>(t);
    for (size_t i = 0; i < vocab; ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  report_.root()["same_bits"] = differing == 0;
  if (differing > 0) {
    report_.root()["differing_bits"] = {
        {"tokens", differing}, {"first", first}, {"largest", largest}, {"of", tokens.size()}};
    std::printf(
        "logits of %lld of %zu tokens differ between whole prompt and single steps: from "
        "token %lld on, by at most %g\n",
        static_cast<long long>(differing), tokens.size(), static_cast<long long>(first), largest);
  }
  report_.Write();
  return differing == 0;
}

CudaModelBench::BatchTime CudaModelBench::Step(std::span<const int64_t> begin, int64_t rows_each,
                                               Logits wanted) {
  const bool wants_logits = wanted != Logits::kNone;
  model::Batch batch;
  std::vector<int32_t> tokens(static_cast<size_t>(rows_each));
  for (size_t i = 0; i < begin.size(); ++i) {
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random_() % model_.config().vocab_size);
    }
    batch.Add(tokens, begin[i], scale_.slot_cap, sessions_[i].as<std::byte>(), wants_logits);
  }
  const double wall = Seconds();
  meter_.Start();
  kernels::ScratchScope scope(context_);
  const kernels::TensorView logits = model_.Forward(batch, context_, scope);
  if (wanted == Logits::kDrawnFrom) Draw(begin, logits);
  const double device = meter_.Stop();
  return {device, Seconds() - wall};
}

// Samples tokens and waits for them, as the engine does after a batch.
void CudaModelBench::Draw(std::span<const int64_t> begin, kernels::TensorView logits) {
  while (samplers_.size() < begin.size()) {
    samplers_.emplace_back(model::SamplingParams{{.top_p = 0.95f, .seed = samplers_.size()}},
                           model_.config().vocab_size);
  }
  reader_ = {};
  for (size_t i = 0; i < begin.size(); ++i) {
    reader_.WantDraws({.sampler = &samplers_[i]}, static_cast<int64_t>(i), begin[i] + 1);
  }
  reader_.Read(context_, logits);
  for (size_t i = 0; i < begin.size(); ++i) {
    const model::Sampled drawn = reader_.Draw(i);
    Check(drawn.finite, "logits of the benchmark's model are finite");
    samplers_[i].Observe(drawn.token_id);
  }
}

double CudaModelBench::LinearFlops() const {
  // Every weight except norms, embedding and head takes part in one product a token.
  const double table = static_cast<double>(model_.config().vocab_size) *
                       static_cast<double>(model_.config().hidden_size);
  return 2 * (static_cast<double>(model_.parameters()) - 2 * table);
}

std::vector<double> CudaModelBench::PrefillPrompts(int n, bool profile_last) {
  sessions_.clear();
  for (int i = 0; i < n; ++i) sessions_.push_back(NewState(context_, model_));
  std::vector<int64_t> begin(static_cast<size_t>(n), 0);
  std::vector<double> seconds;
  while (begin[0] < scale_.prefill_tokens) {
    const bool last = begin[0] + scale_.prefill_chunk_tokens >= scale_.prefill_tokens;
    if (last && profile_last) StartProfiler();
    seconds.push_back(Step(begin, scale_.prefill_chunk_tokens, Logits::kNone).device);
    if (last && profile_last) StopProfiler();
    for (int64_t& position : begin) position += scale_.prefill_chunk_tokens;
  }
  prefilled_ = std::move(sessions_[0]);
  sessions_.clear();
  return seconds;
}

void CudaModelBench::Prefill() {
  const int n = scale_.prefill_sessions;
  std::vector<double> seconds = PrefillPrompts(n);
  // The first batch includes one-time work: the others' median stands in for it.
  seconds[0] = std::min(seconds[0], Median(seconds));
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double tokens = static_cast<double>(n) * static_cast<double>(scale_.prefill_tokens);
  const double flops = tokens * LinearFlops();
  report_.Add({.name = "prefill",
               .sessions = n,
               .seconds = total,
               .measure = "of the matmul rate, projections alone",
               .value = OverCeiling(flops / total, ceilings_.matmul_flops_per_s),
               .more = {{"tokens", tokens},
                        {"tokens_per_s", tokens / total},
                        {"flops", flops},
                        {"step_seconds", seconds}}});
}

void CudaModelBench::Profile(bool prefill, bool decode) {
  if (prefill) PrefillPrompts(scale_.prefill_sessions, /*profile_last=*/true);
  if (!decode) return;
  for (const int n : scale_.decode_sessions) {
    MakeSessions(n);
    std::vector<int64_t> begin = SpreadPhases(n);
    TimeDecode(begin, kWarmUpSteps);
    for (int64_t& position : begin) position += kWarmUpSteps;
    StartProfiler();
    Step(begin, 1, Logits::kDrawnFrom);
    StopProfiler();
  }
}

void CudaModelBench::MakeSessions(int n) {
  const size_t bytes = model_.layout().virtual_bytes();
  if (prefilled_.as<void>() == nullptr) PrefillPrompts(1);
  sessions_.resize(std::min(sessions_.size(), static_cast<size_t>(n)));
  while (sessions_.size() < static_cast<size_t>(n)) {
    kernels::Buffer state(context_.device(), bytes);
    kernels::cuda::CopyOnDevice(context_.cuda(), state.as<void>(), prefilled_.as<void>(), bytes);
    sessions_.push_back(std::move(state));
  }
}

std::vector<double> CudaModelBench::TimeDecode(std::vector<int64_t> begin, int64_t n_steps) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < n_steps; ++i) {
    seconds.push_back(Step(begin, 1, Logits::kDrawnFrom).device);
    for (int64_t& position : begin) ++position;
  }
  return seconds;
}

// Session i starts i / n of a chunk into its chunk.
std::vector<int64_t> CudaModelBench::SpreadPhases(int n) const {
  std::vector<int64_t> begin;
  for (int64_t i = 0; i < n; ++i) {
    begin.push_back(scale_.decode_position + i * scale_.chunk_len / n);
  }
  return begin;
}

void CudaModelBench::Decode() {
  const size_t state_bytes = model_.layout().live_bytes_at(scale_.decode_position, scale_.slot_cap);
  report_.root()["model"] = {{"parameters", model_.parameters()},
                             {"weight_bytes", model_.weight_count().bytes},
                             {"state_bytes_per_session", state_bytes},
                             {"decode_position", scale_.decode_position}};
  for (const int n : scale_.decode_sessions) {
    const absl::Status fits = kernels::CatchDeviceErrors([&] { DecodeSessions(n, state_bytes); });
    if (fits.ok()) continue;
    report_.root()["left_out"].push_back(
        {{"name", "decode"}, {"sessions", n}, {"reason", fits.message()}});
    std::printf("decode of %d sessions: %s\n", n, std::string(fits.message()).c_str());
    sessions_.clear();
  }
}

void CudaModelBench::DecodeSessions(int n, size_t state_bytes) {
  MakeSessions(n);
  std::vector<int64_t> begin = SpreadPhases(n);
  TimeDecode(begin, kWarmUpSteps);
  std::vector<double> device, wall;
  for (int i = 0; i < scale_.decode_steps; ++i) {
    const BatchTime time = Step(begin, 1, Logits::kDrawnFrom);
    device.push_back(time.device);
    wall.push_back(time.wall);
    for (int64_t& position : begin) ++position;
  }
  std::vector<double> without_sampling;
  for (int i = 0; i < std::max(scale_.decode_steps / 4, 1); ++i) {
    without_sampling.push_back(Step(begin, 1, Logits::kLeft).device);
    for (int64_t& position : begin) ++position;
  }
  const double bytes = model_.weight_count().ReadBy(n) + static_cast<double>(state_bytes) * n;
  const double seconds = Median(device);
  const double floor = OverCeiling(bytes, ceilings_.copy_bytes_per_s);
  report_.Add({.name = "decode",
               .sessions = n,
               .seconds = seconds,
               .measure = "times the byte floor",
               .value = OverCeiling(seconds, floor),
               .goal = GoalIf(floor, Goal::kAtMost),
               .target = kFloorTarget,
               .more = {{"wall_seconds", Median(wall)},
                        {"seconds_without_sampling", Median(without_sampling)},
                        {"step_seconds", device},
                        {"floor_seconds_at_read", OverCeiling(bytes, ceilings_.read_bytes_per_s)},
                        {"bytes", bytes},
                        {"floor_seconds", floor},
                        {"fraction_of_copy", floor / seconds},
                        {"state_bytes_per_session", state_bytes},
                        {"tokens_per_s", n / seconds}}});
}

void CudaModelBench::ChunkUpdates() {
  const int n = scale_.update_sessions;
  MakeSessions(n);
  // In phase, only the last batch of a chunk updates dictionaries; spread, nearly every one does.
  const std::vector<int64_t> in_phase(static_cast<size_t>(n), scale_.decode_position);
  const std::vector<int64_t> spread = SpreadPhases(n);
  TimeDecode(in_phase, kWarmUpSteps);
  std::vector<std::vector<double>> in_phase_runs, spread_runs;
  for (int pass = 0; pass < scale_.update_passes; ++pass) {
    in_phase_runs.push_back(TimeDecode(in_phase, scale_.chunk_len));
    spread_runs.push_back(TimeDecode(spread, scale_.chunk_len));
  }
  const std::vector<double> in_phase_steps = Medians(in_phase_runs);
  const std::vector<double> spread_steps = Medians(spread_runs);
  const double without = Mean(std::span(in_phase_steps).first(in_phase_steps.size() - 1));
  const double with = Mean(spread_steps);
  report_.Add({.name = "chunk_updates",
               .sessions = n,
               .seconds = with,
               .measure = "of a step without updates, added",
               .value = with / without - 1,
               .goal = Goal::kAtMost,
               .target = kUpdateTarget,
               .more = {{"seconds_without", without},
                        {"seconds_when_all_update", in_phase_steps.back()},
                        {"step_seconds_in_phase", in_phase_runs},
                        {"step_seconds", spread_runs}}});
  const double worst = *std::max_element(spread_steps.begin(), spread_steps.end());
  report_.Add({.name = "worst_step",
               .sessions = n,
               .seconds = worst,
               .measure = "times the median step",
               .value = worst / Median(spread_steps),
               .goal = Goal::kAtMost,
               .target = kWorstTarget});
}

}  // namespace ovq::bench
