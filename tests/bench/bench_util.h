// Helpers of the benchmarks: clock, medians, measured read bandwidth, a random model on disk.
#pragma once

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::bench {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Bytes per second at which `n_threads` threads read 1 GiB that no cache holds. The best of 5
// passes counts, as other load on the machine can only make a pass slower.
inline double ReadBandwidth(int n_threads) {
  const size_t n = (size_t{1} << 30) / sizeof(uint64_t);
  std::vector<uint64_t> data(n, 1);
  double best = 0;
  uint64_t total = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double start = Seconds();
    uint64_t sum = 0;
#pragma omp parallel for num_threads(n_threads) reduction(+ : sum)
    for (size_t i = 0; i < n; ++i) sum += data[i];
    total += sum;
    best = std::max(best, static_cast<double>(n * sizeof(uint64_t)) / (Seconds() - start));
  }
  if (total != 5 * n) std::abort();  // keeps the loop from being removed
  return best;
}

// The value, or an end of the program with the error's message.
template <class T>
T ValueOrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  const std::string message(value.status().message());
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(2);
}

inline const char* FlagValue(int argc, char** argv, const std::string& name, const char* fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == name) return argv[i + 1];
  }
  return fallback;
}

// Ends the program with a message unless every option is in `known` and has a value.
inline void CheckFlags(int argc, char** argv, const std::vector<std::string>& known) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && std::find(known.begin(), known.end(), argv[i]) != known.end()) continue;
    std::fprintf(stderr, "%s: expected NAME VALUE of", argv[i]);
    for (const std::string& name : known) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
}

inline std::vector<std::string> Names(const std::string& list) {
  std::vector<std::string> names{""};
  for (char c : list) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

// Parses "128,1024" into {128, 1024}.
inline std::vector<int64_t> Numbers(const std::string& list) {
  std::vector<int64_t> numbers;
  for (size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
    numbers.push_back(std::atoll(list.c_str() + at));
    if (list.find(',', at) == std::string::npos) break;
  }
  return numbers;
}

}  // namespace ovq::bench
