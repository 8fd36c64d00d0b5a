// Report of bench_cuda: a table on stdout and a JSON file that is complete after every figure.
#pragma once

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/cuda_meter.h"

namespace ovq::bench {

// Kind of target for a value.
enum class Goal : unsigned char { kNone, kAtMost, kAtLeast };

struct Figure {
  std::string name;
  int sessions;
  double seconds;       // of a batch or, for prefill, of the whole prompt
  std::string measure;  // meaning of the value: "of the byte floor", ...
  double value;
  std::string counted = "sessions";
  Goal goal = Goal::kNone;
  double target = 0;
  nlohmann::json more = nlohmann::json::object();  // more fields: bytes, flops, ...
};

// x over a ceiling. 0 if the ceiling was not measured; then no target can be met or missed.
inline double OverCeiling(double x, double ceiling) { return ceiling > 0 ? x / ceiling : 0; }
inline Goal GoalIf(double ceiling, Goal goal) { return ceiling > 0 ? goal : Goal::kNone; }

class Report {
 public:
  explicit Report(std::string path) : path_(std::move(path)) {}

  nlohmann::json& root() { return root_; }

  void Add(const Figure& figure) {
    nlohmann::json entry = figure.more;
    entry["name"] = figure.name;
    entry["sessions"] = figure.sessions;
    entry["counted"] = figure.counted;
    entry["seconds"] = figure.seconds;
    entry["measure"] = figure.measure;
    entry["value"] = figure.value;
    std::string verdict;
    if (figure.goal != Goal::kNone) {
      const bool met = figure.goal == Goal::kAtMost ? figure.value <= figure.target
                                                    : figure.value >= figure.target;
      entry["target"] = figure.target;
      entry["met"] = met;
      verdict = met ? " met" : " missed";
    }
    root_["figures"].push_back(entry);
    std::printf("%-14s %4d %-8s %12.4f ms %10.4f %s%s\n", figure.name.c_str(), figure.sessions,
                figure.counted.c_str(), figure.seconds * 1e3, figure.value, figure.measure.c_str(),
                verdict.c_str());
    std::fflush(stdout);
    Write();
  }

  void Write() const {
    if (!path_.empty()) std::ofstream(path_) << root_.dump(1) << "\n";
  }

 private:
  std::string path_;
  nlohmann::json root_ = {{"figures", nlohmann::json::array()}};
};

// Sizes of the measurements.
struct Scale {
  kernels::DType state_dtype = kernels::DType::kBF16;
  int64_t chunk_len;
  int32_t slot_cap;
  std::vector<int> decode_sessions;
  int64_t decode_position;  // a multiple of chunk_len at which the dictionaries are full
  int decode_steps;
  int update_sessions;
  int update_passes;
  int prefill_sessions;
  int64_t prefill_tokens;        // for each session
  int64_t prefill_chunk_tokens;  // for each session in a batch
  int64_t checked_tokens;        // for the comparison of whole-prompt and token-by-token runs
  std::vector<int> product_rows;
};

}  // namespace ovq::bench
