// ReadLogits (sample.h) on CUDA: log-sum-exp of every row of logits [n_rows, vocab], draws
// (cuda/sample_draw.cuh), logits of given tokens and the n best of a row (cuda/sample_select.cuh),
// with one copy to the device and one back.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/packer.h"
#include "kernels/ops/cuda/sample_draw.cuh"
#include "kernels/ops/cuda/sample_select.cuh"
#include "kernels/ops/ops.h"
#include "kernels/ops/sample_device.h"

namespace ovq::kernels::cuda {
namespace {

// The scratch memory of all thread blocks together, each of which has its own; it bounds their
// number.
constexpr size_t kMaxScratchBytes = size_t{128} << 20;

// One draw per thread block. The kernel before is LogSumExp of the same logits: beside it the draws
// may run, so they wait for it at their end.
__global__ void __launch_bounds__(kSampleThreads) DrawKernel(const ReadTask task) {
  for (int i = static_cast<int>(blockIdx.x); i < task.n_draws; i += static_cast<int>(gridDim.x)) {
    const DeviceDraw& draw = task.draws[i];
    const float* logits = task.logits + draw.row * task.vocab;
    const int32_t id = DrawToken(task, draw, Adjust(task, draw, logits, task.log_sum_exp + i));
    if (threadIdx.x == 0) task.drawn[i] = {id, logits[id]};
    __syncthreads();
  }
  WaitForKernelsBefore();
}

__device__ void FindBest(const ReadTask& task, const DeviceBest& wanted) {
  if (wanted.n == 0) return;
  const float* row = task.logits + wanted.row * task.vocab;
  const RowRange range = FindRange(row, task.vocab);
  CandidateOrder order = MakeOrder(row, range, nullptr, 1);
  if (wanted.allowed >= 0) {
    const uint32_t* allowed = task.masks + wanted.allowed;
    order.weights = task.weights + int64_t{blockIdx.x} * task.vocab;
    order.fresh = false;
    ForEach(task.vocab, [&](int id) { order.weights[id] = IsAllowed(allowed, id) ? 1 : 0; });
  }
  const auto n = static_cast<uint64_t>(wanted.n);
  const Place last = SelectLast(
      order, task.vocab, [n](uint64_t) -> uint64_t { return n; },
      task.border + int64_t{blockIdx.x} * task.vocab);
  ClearBins(0);
  const SharedPtr<unsigned> count = DynamicShared<unsigned>(kCountBytes);
  ForEach(task.vocab, [&](int id) {
    const Candidate candidate = order.Load(id);
    if (!order.Has(candidate) || !Reaches(order, id, candidate, last)) return;
    task.best[wanted.out + atomicAdd(count, 1u)] = {id, NoNan(row[id])};
  });
}

// One thread block per row's best tokens; one thread per given token.
__global__ void __launch_bounds__(kSampleThreads) FindKernel(const ReadTask task) {
  const int block = static_cast<int>(blockIdx.x), n_blocks = static_cast<int>(gridDim.x);
  for (int i = block; i < task.n_bests; i += n_blocks) FindBest(task, task.bests[i]);
  for (int i = block * kSampleThreads + static_cast<int>(threadIdx.x); i < task.n_tokens;
       i += n_blocks * kSampleThreads) {
    const RowToken token = task.tokens[i];
    task.token_logits[i] = task.logits[token.row * task.vocab + token.id];
  }
}

// The offsets of each array in the data sent and in the results.
struct Places {
  size_t draws, tokens, bests, lists, masks, sent_bytes;
  size_t log_sum_exp, drawn, drawn_sums, logits, best, result_bytes;
};

// The masks of a reading, one after another, each once: draws of a row and of its best tokens share
// one.
class Masks {
 public:
  explicit Masks(const LogitsReading& reading) {
    for (const RowDraw& draw : reading.draws) Add(draw.allowed);
    for (const RowBest& best : reading.bests) Add(best.allowed);
  }
  size_t n_words() const { return n_words_; }
  // Where the mask begins; -1 for none.
  int64_t Begin(TokenMaskBits mask) const {
    return mask.empty() ? -1 : static_cast<int64_t>(begins_.at(mask.data()));
  }
  void CopyTo(uint32_t* words) const {
    for (const TokenMaskBits mask : masks_) words = std::ranges::copy(mask, words).out;
  }

 private:
  void Add(TokenMaskBits mask) {
    if (mask.empty() || !begins_.try_emplace(mask.data(), n_words_).second) return;
    masks_.push_back(mask);
    n_words_ += mask.size();
  }

  std::vector<TokenMaskBits> masks_;
  std::unordered_map<const uint32_t*, size_t> begins_;
  size_t n_words_ = 0;
};

size_t ListWords(const RowDraw& draw) {
  return draw.seen.size() + 2 * (draw.generated.size() + draw.bias.size()) + draw.banned.size();
}

Places LayOutPlaces(const LogitsReading& reading, const Masks& masks, int64_t n_rows) {
  size_t n_words = 0, n_best = 0;
  for (const RowDraw& draw : reading.draws) n_words += ListWords(draw);
  for (const RowBest& best : reading.bests) n_best += best.best.size();
  Places at;
  Packer sent, result;
  at.draws = sent.Add<DeviceDraw>(reading.draws.size());
  at.tokens = sent.Add<RowToken>(reading.tokens.size());
  at.bests = sent.Add<DeviceBest>(reading.bests.size());
  at.lists = sent.Add<int32_t>(n_words);
  at.masks = sent.Add<uint32_t>(masks.n_words());
  at.sent_bytes = sent.bytes();
  at.log_sum_exp = result.Add<float>(static_cast<size_t>(n_rows));
  at.drawn = result.Add<TokenLogit>(reading.draws.size());
  at.drawn_sums = result.Add<float>(reading.draws.size());
  at.logits = result.Add<float>(reading.tokens.size());
  at.best = result.Add<TokenLogit>(n_best);
  at.result_bytes = result.bytes();
  return at;
}

template <class T>
T* At(std::byte* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

template <class T>
int32_t* Append(std::span<const T> list, int32_t* to) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  if (!list.empty()) std::memcpy(to, list.data(), list.size_bytes());
  return to + list.size_bytes() / sizeof(int32_t);
}

void FillSent(const LogitsReading& reading, const Masks& masks, const Places& at, std::byte* host) {
  auto* draws = At<DeviceDraw>(host, at.draws);
  int32_t* const lists = At<int32_t>(host, at.lists);
  int32_t* list = lists;
  for (const RowDraw& draw : reading.draws) {
    *draws++ = {.row = draw.row,
                .random = RandomBits(draw),
                .lists = list - lists,
                .allowed = masks.Begin(draw.allowed),
                .n_seen = static_cast<int32_t>(draw.seen.size()),
                .n_generated = static_cast<int32_t>(draw.generated.size()),
                .n_biased = static_cast<int32_t>(draw.bias.size()),
                .n_banned = static_cast<int32_t>(draw.banned.size()),
                .params = draw.params};
    list = Append(draw.seen, list);
    list = Append(draw.generated, list);
    list = Append(draw.bias, list);
    list = Append(draw.banned, list);
  }
  masks.CopyTo(At<uint32_t>(host, at.masks));
  std::ranges::copy(reading.tokens, At<RowToken>(host, at.tokens));
  auto* bests = At<DeviceBest>(host, at.bests);
  int64_t out = 0;
  for (const RowBest& best : reading.bests) {
    const auto n = static_cast<int64_t>(best.best.size());
    *bests++ = {best.row, n, out, masks.Begin(best.allowed)};
    out += n;
  }
}

void ReadResults(std::byte* host, const Places& at, LogitsReading& reading) {
  std::memcpy(reading.log_sum_exp.data(), host + at.log_sum_exp,
              reading.log_sum_exp.size() * sizeof(float));
  const auto* drawn = At<TokenLogit>(host, at.drawn);
  const auto* sum = At<float>(host, at.drawn_sums);
  for (RowDraw& draw : reading.draws) {
    draw.drawn = *drawn++;
    const float of_row = reading.log_sum_exp[static_cast<size_t>(draw.row)], masked = *sum++;
    draw.log_sum_exp = draw.allowed.empty() || std::isnan(of_row) ? of_row : masked;
  }
  const auto* logits = At<float>(host, at.logits);
  for (RowToken& token : reading.tokens) token.logit = *logits++;
  const auto* found = At<TokenLogit>(host, at.best);
  for (RowBest& best : reading.bests) {
    std::copy_n(found, best.best.size(), best.best.begin());
    std::ranges::sort(best.best, BetterLogit);
    found += best.best.size();
  }
}

// Launches as many thread blocks as have work, run at once on the device and may have scratch
// memory.
void LaunchReading(DeviceContext& context, const LogitsReading& reading, ReadTask task) {
  bool adjusts = false, weighs = false;
  for (const RowDraw& draw : reading.draws) {
    adjusts |= ListWords(draw) > 0 || !draw.allowed.empty();
    weighs |= draw.params.temperature > 0;
  }
  for (const RowBest& best : reading.bests) weighs |= !best.allowed.empty();
  const auto vocab = static_cast<size_t>(task.vocab);
  const size_t scratch_bytes =
      vocab * (sizeof(int32_t) + (adjusts ? sizeof(float) : 0) + (weighs ? sizeof(double) : 0));
  const size_t most = std::clamp<size_t>(kMaxScratchBytes / scratch_bytes, 1,
                                         static_cast<size_t>(context.cuda().n_multiprocessors));
  const size_t n_draw_blocks = std::min(reading.draws.size(), most);
  const size_t n_token_blocks = (reading.tokens.size() + kSampleThreads - 1) / kSampleThreads;
  const size_t n_find_blocks = std::min(std::max(reading.bests.size(), n_token_blocks), most);
  ScratchScope scope(context);
  if (adjusts) task.adjusted = scope.Allocate<float>(n_draw_blocks * vocab);
  const size_t n_blocks = std::max(n_draw_blocks, n_find_blocks);
  if (weighs) task.weights = scope.Allocate<double>(n_blocks * vocab);
  task.border = scope.Allocate<int32_t>(n_blocks * vocab);
  if (n_draw_blocks > 0) {
    LaunchEarly(context, DrawKernel, static_cast<unsigned>(n_draw_blocks), kSampleThreads,
                kSampleSharedBytes, task);
  }
  if (n_find_blocks > 0) {
    Launch(context, FindKernel, static_cast<unsigned>(n_find_blocks), kSampleThreads,
           kSampleSharedBytes, task);
  }
}

}  // namespace

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  const int64_t n_rows = logits.shape[0], vocab = logits.shape[1];
  if (n_rows == 0) return context.Synchronize();
  Check(vocab < int64_t{1} << kIdBits, "ReadLogits: at most 2^24 - 1 tokens in a vocabulary");
  const Masks masks(reading);
  const Places at = LayOutPlaces(reading, masks, n_rows);
  std::byte* host = context.Staging(at.sent_bytes, Staged::kReading);
  FillSent(reading, masks, at, host);
  std::byte* sent = context.SendStaging(at.sent_bytes, Staged::kReading);
  ScratchScope scope(context);
  auto* result = scope.Allocate<std::byte>(at.result_bytes);
  LogSumExp(context, logits, At<float>(result, at.log_sum_exp));
  LaunchReading(context, reading,
                {.logits = logits.as<float>(),
                 .vocab = static_cast<int32_t>(vocab),
                 .n_draws = static_cast<int32_t>(reading.draws.size()),
                 .n_tokens = static_cast<int32_t>(reading.tokens.size()),
                 .n_bests = static_cast<int32_t>(reading.bests.size()),
                 .draws = At<DeviceDraw>(sent, at.draws),
                 .lists = At<int32_t>(sent, at.lists),
                 .masks = At<uint32_t>(sent, at.masks),
                 .tokens = At<RowToken>(sent, at.tokens),
                 .bests = At<DeviceBest>(sent, at.bests),
                 .drawn = At<TokenLogit>(result, at.drawn),
                 .log_sum_exp = At<float>(result, at.drawn_sums),
                 .token_logits = At<float>(result, at.logits),
                 .best = At<TokenLogit>(result, at.best),
                 .adjusted = nullptr,
                 .weights = nullptr,
                 .border = nullptr});
  std::vector<std::byte> results(at.result_bytes);
  context.CopyToHost(results.data(), result, at.result_bytes);
  ReadResults(results.data(), at, reading);
}

}  // namespace ovq::kernels::cuda
