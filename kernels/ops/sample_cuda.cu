// ReadLogits of sample.h: log-sum-exp of every row of logits [n_rows, vocab], draws
// (cuda/sample_draw.cuh), logits of known tokens and the n best of a row (cuda/sample_select.cuh),
// with one copy to the device and one back.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/packer.h"
#include "kernels/ops/cuda/sample_draw.cuh"
#include "kernels/ops/cuda/sample_select.cuh"
#include "kernels/ops/ops.h"
#include "kernels/ops/sample_device.h"

namespace ovq::cuda {
namespace {

// Each thread block works in scratch memory of its own; this bounds it, and with it their number.
constexpr size_t kMaxScratchBytes = size_t{128} << 20;

struct DeviceToken {
  int64_t row;
  int64_t id;
};
struct DeviceBest {
  int64_t row;
  int64_t n;    // at most vocab
  int64_t out;  // its first element among the results
};

__global__ void __launch_bounds__(kSampleThreads) DrawKernel(const DrawTask task) {
  for (int i = static_cast<int>(blockIdx.x); i < task.n_draws; i += static_cast<int>(gridDim.x)) {
    const DeviceDraw draw = task.draws[i];
    const float* logits = task.logits + draw.row * task.vocab;
    const int32_t id = DrawToken(task, draw, Adjust(task, draw, logits));
    if (threadIdx.x == 0) task.drawn[i] = {id, logits[id]};
    __syncthreads();
  }
}

struct TokenTask {
  const float* logits;  // [n_rows, vocab]
  int32_t vocab;
  int32_t n_tokens;
  const DeviceToken* tokens;  // [n_tokens]
  float* out;                 // [n_tokens]
};

__global__ void TokenKernel(const TokenTask task) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= task.n_tokens) return;
  const DeviceToken token = task.tokens[i];
  task.out[i] = task.logits[token.row * task.vocab + token.id];
}

struct BestTask {
  const float* logits;  // [n_rows, vocab]
  int32_t vocab;
  int32_t n_bests;
  const DeviceBest* bests;  // [n_bests]
  TokenLogit* out;          // each one's n, in any order
  int32_t* border;          // scratch [n_blocks, vocab]
};

// All tokens by logit.
struct LogitOrder {
  const float* row;
  double best;
  double bins_per_unit;

  __device__ bool Has(int32_t) const { return true; }
  __device__ uint64_t Measure(int32_t) const { return 1; }
  __device__ int key_bits() const { return 32; }
  __device__ uint64_t Key(int32_t id) const { return ~AscendingKey(row[id]); }
  __device__ int Bin(int32_t id) const {
    const double bin = (best - static_cast<double>(Sane(row[id]))) * bins_per_unit;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;  // minus infinity: the last
  }
};

__global__ void __launch_bounds__(kSampleThreads) BestKernel(const BestTask task) {
  constexpr double kWidestBins = 64;  // logits farther below the best share the last bin
  for (int i = static_cast<int>(blockIdx.x); i < task.n_bests; i += static_cast<int>(gridDim.x)) {
    const DeviceBest wanted = task.bests[i];
    const float* row = task.logits + wanted.row * task.vocab;
    const RowRange range = FindRange(row, task.vocab);
    const double width = static_cast<double>(Sane(range.best)) - Sane(range.lowest);
    const LogitOrder order{.row = row,
                           .best = Sane(range.best),
                           .bins_per_unit = width > 0 ? kBins / fmin(width, kWidestBins) : 0};
    const auto n = static_cast<uint64_t>(wanted.n);
    const Place last = SelectLast(
        order, task.vocab, [n](uint64_t) -> uint64_t { return n; },
        task.border + int64_t{blockIdx.x} * task.vocab);
    ClearBins(0);
    const SharedPtr<unsigned> count = DynamicShared<unsigned>(kCountBytes);
    for (int id = static_cast<int>(threadIdx.x); id < task.vocab; id += kSampleThreads) {
      if (!Reaches(order, id, last)) continue;
      task.out[wanted.out + atomicAdd(count, 1u)] = {id, NoNan(row[id])};
    }
    __syncthreads();
  }
}

// Where each array lies in what is sent, and in what comes back.
struct Places {
  size_t draws, tokens, bests, lists, sent_bytes;
  size_t log_sum_exp, drawn, logits, best, result_bytes;
};

size_t ListWords(const RowDraw& draw) {
  return draw.seen.size() + 2 * (draw.generated.size() + draw.bias.size()) + draw.banned.size();
}

Places PlacesOf(const LogitsReading& reading, int64_t n_rows, int64_t vocab) {
  size_t n_words = 0, n_best = 0;
  for (const RowDraw& draw : reading.draws) n_words += ListWords(draw);
  for (const RowBest& best : reading.bests) {
    n_best += static_cast<size_t>(std::min<int64_t>(best.n, vocab));
  }
  Places at;
  Packer sent, result;
  at.draws = sent.Add<DeviceDraw>(reading.draws.size());
  at.tokens = sent.Add<DeviceToken>(reading.tokens.size());
  at.bests = sent.Add<DeviceBest>(reading.bests.size());
  at.lists = sent.Add<int32_t>(n_words);
  at.sent_bytes = sent.bytes();
  at.log_sum_exp = result.Add<float>(static_cast<size_t>(n_rows));
  at.drawn = result.Add<TokenLogit>(reading.draws.size());
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

void FillSent(const LogitsReading& reading, const Places& at, int64_t vocab, std::byte* host) {
  auto* draws = At<DeviceDraw>(host, at.draws);
  int32_t* const lists = At<int32_t>(host, at.lists);
  int32_t* list = lists;
  for (const RowDraw& draw : reading.draws) {
    *draws++ = {.row = draw.row,
                .random = RandomBits(draw),
                .lists = list - lists,
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
  auto* tokens = At<DeviceToken>(host, at.tokens);
  for (const RowToken& token : reading.tokens) *tokens++ = {token.row, token.id};
  auto* bests = At<DeviceBest>(host, at.bests);
  int64_t out = 0;
  for (const RowBest& best : reading.bests) {
    const int64_t n = std::min<int64_t>(best.n, vocab);
    *bests++ = {best.row, n, out};
    out += n;
  }
}

void TakeResults(std::byte* host, const Places& at, int64_t vocab, LogitsReading& reading) {
  std::memcpy(reading.log_sum_exp.data(), host + at.log_sum_exp,
              reading.log_sum_exp.size() * sizeof(float));
  const auto* drawn = At<TokenLogit>(host, at.drawn);
  for (RowDraw& draw : reading.draws) draw.drawn = *drawn++;
  const auto* logits = At<float>(host, at.logits);
  for (RowToken& token : reading.tokens) token.logit = *logits++;
  const auto* found = At<TokenLogit>(host, at.best);
  for (RowBest& best : reading.bests) {
    const int64_t n = std::min<int64_t>(best.n, vocab);
    best.best.assign(found, found + n);
    std::sort(best.best.begin(), best.best.end(), BetterLogit);
    found += n;
  }
}

// As many thread blocks as have work, run at once on the device and may have scratch memory.
int GridSize(DeviceContext& context, size_t n, size_t scratch_bytes) {
  const size_t fit = std::max<size_t>(kMaxScratchBytes / std::max<size_t>(scratch_bytes, 1), 1);
  return static_cast<int>(
      std::min({n, fit, static_cast<size_t>(context.cuda().n_multiprocessors)}));
}

void LaunchDraws(DeviceContext& context, const LogitsReading& reading, DrawTask task) {
  if (task.n_draws == 0) return;
  bool adjusts = false, weighs = false;
  for (const RowDraw& draw : reading.draws) {
    adjusts |= ListWords(draw) > 0;
    weighs |= draw.params.temperature > 0;
  }
  const size_t bytes =
      (adjusts ? sizeof(float) : 0) + (weighs ? sizeof(double) + sizeof(int32_t) : 0);
  const auto vocab = static_cast<size_t>(task.vocab);
  const int n_blocks = GridSize(context, reading.draws.size(), bytes * vocab);
  const size_t n = static_cast<size_t>(n_blocks) * vocab;
  ScratchScope scope(context);
  if (adjusts) task.adjusted = scope.Allocate<float>(n);
  if (weighs) task.weights = scope.Allocate<double>(n);
  if (weighs) task.border = scope.Allocate<int32_t>(n);
  Launch(context, DrawKernel, n_blocks, kSampleThreads, kSampleSharedBytes, task);
}

void LaunchTokens(DeviceContext& context, const TokenTask& task) {
  constexpr int kThreads = 128;
  if (task.n_tokens == 0) return;
  Launch(context, TokenKernel, (task.n_tokens + kThreads - 1) / kThreads, kThreads, 0, task);
}

void LaunchBests(DeviceContext& context, BestTask task) {
  if (task.n_bests == 0) return;
  const size_t row_bytes = static_cast<size_t>(task.vocab) * sizeof(int32_t);
  const int n_blocks = GridSize(context, static_cast<size_t>(task.n_bests), row_bytes);
  ScratchScope scope(context);
  task.border = scope.Allocate<int32_t>(static_cast<size_t>(n_blocks) * task.vocab);
  Launch(context, BestKernel, n_blocks, kSampleThreads, kSampleSharedBytes, task);
}

}  // namespace

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  const int64_t n_rows = logits.shape[0], vocab = logits.shape[1];
  if (n_rows == 0) return context.Synchronize();
  Check(vocab < int64_t{1} << kIdBits, "ReadLogits: at most 2^24 - 1 tokens in a vocabulary");
  const Places at = PlacesOf(reading, n_rows, vocab);
  std::byte* host = context.Staging(at.sent_bytes, Staged::kReading);
  FillSent(reading, at, vocab, host);
  std::byte* sent = context.SendStaging(at.sent_bytes, Staged::kReading);
  ScratchScope scope(context);
  auto* result = scope.Allocate<std::byte>(at.result_bytes);
  const auto* rows = logits.as<float>();
  const auto width = static_cast<int32_t>(vocab);
  LogSumExp(context, logits, At<float>(result, at.log_sum_exp));
  LaunchDraws(context, reading,
              {.logits = rows,
               .vocab = width,
               .n_draws = static_cast<int32_t>(reading.draws.size()),
               .draws = At<DeviceDraw>(sent, at.draws),
               .lists = At<int32_t>(sent, at.lists),
               .drawn = At<TokenLogit>(result, at.drawn),
               .adjusted = nullptr,
               .weights = nullptr,
               .border = nullptr});
  LaunchTokens(context, {.logits = rows,
                         .vocab = width,
                         .n_tokens = static_cast<int32_t>(reading.tokens.size()),
                         .tokens = At<DeviceToken>(sent, at.tokens),
                         .out = At<float>(result, at.logits)});
  LaunchBests(context, {.logits = rows,
                        .vocab = width,
                        .n_bests = static_cast<int32_t>(reading.bests.size()),
                        .bests = At<DeviceBest>(sent, at.bests),
                        .out = At<TokenLogit>(result, at.best),
                        .border = nullptr});
  std::vector<std::byte> results(at.result_bytes);
  context.CopyToHost(results.data(), result, at.result_bytes);
  TakeResults(results.data(), at, vocab, reading);
}

}  // namespace ovq::cuda
