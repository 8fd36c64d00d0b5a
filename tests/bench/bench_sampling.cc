// Time of a draw from a row of logits on the CPU, free and masked, in CPU time.
//
//   bench_sampling [VOCAB]
//
// VOCAB: tokens of the vocabulary, 150,000 by default. Masks allow a share of the tokens, spread at
// random; the times are medians of 200 rows, with the row's logarithm of its sum of exponentials.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "model/logits_reader.h"
#include "tests/bench/bench_util.h"

namespace ovq::bench {
namespace {

constexpr int kRows = 200;

double ProcessSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<uint32_t> RandomMask(int64_t vocab, double share, std::mt19937_64& random) {
  std::vector<uint32_t> words(static_cast<size_t>((vocab + 31) / 32));
  std::bernoulli_distribution allowed(share);
  for (int64_t id = 0; id < vocab; ++id) {
    if (allowed(random)) words[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
  }
  words[0] |= 1;  // at least one token
  return words;
}

// Microseconds of a draw. share: of the tokens that the mask allows; negative: no mask.
double Measure(kernels::DeviceContext& context, std::vector<float>& row, double share,
               const model::SamplingParams& params) {
  const int64_t vocab = std::ssize(row);
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const model::Sampler sampler(params, vocab);
  const std::vector<uint32_t> words = RandomMask(vocab, std::max(share, 0.0), random);
  const kernels::TokenMaskBits mask = words;
  std::vector<double> times;
  for (int i = 0; i < kRows; ++i) {
    row[static_cast<size_t>(i)] = 3 * normal(random);
    model::LogitsReader reader;
    const double begin = ProcessSeconds();
    model::DrawRequest request = {.sampler = &sampler};
    if (share >= 0) request.allowed = {&mask, 1};
    reader.WantDraws(request, 0, i);
    reader.Read(context, {row.data(), kernels::DType::kF32, kernels::Shape{1, vocab}});
    (void)reader.Draw(0);
    times.push_back(1e6 * (ProcessSeconds() - begin));
  }
  std::ranges::nth_element(times, times.begin() + kRows / 2);
  return times[kRows / 2];
}

void Main(int64_t vocab) {
  const std::unique_ptr<kernels::DeviceContext> context =
      ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, /*n_threads=*/1));
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(static_cast<size_t>(vocab));
  for (float& logit : row) logit = normal(random);
  struct Case {
    const char* name;
    model::SamplingParams params;
  };
  const Case cases[] = {{"greedy", {{.temperature = 0}}},
                        {"temperature 1", {}},
                        {"top_p 0.95", {{.temperature = 0.8f, .top_p = 0.95f}}}};
  std::printf("%lld tokens, microseconds of a draw\n%-14s %10s", static_cast<long long>(vocab), "",
              "free");
  const double shares[] = {1, 0.9, 0.5, 0.01, 0};
  for (const double share : shares) std::printf("  %6.0f %%", 100 * share);
  std::printf("\n");
  for (const auto& [name, params] : cases) {
    std::printf("%-14s %10.1f", name, Measure(*context, row, -1, params));
    for (const double share : shares) {
      std::printf("  %8.1f", Measure(*context, row, share, params));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) {
  int64_t vocab = 150'000;
  if (argc > 2 || (argc == 2 && (!absl::SimpleAtoi(argv[1], &vocab) || vocab < 1))) {
    std::fprintf(stderr, "%s: expected at most one argument, a number of tokens from 1 on\n",
                 argv[1]);
    return 2;
  }
  ovq::bench::Main(vocab);
  return 0;
}
