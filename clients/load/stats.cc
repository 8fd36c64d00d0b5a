#include "clients/load/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flag_values.h"

namespace ovq::load {
namespace {

constexpr double kMs = 1e3;
constexpr double kLeast = std::numeric_limits<double>::denorm_min();  // the least number above 0
constexpr double kMost = std::numeric_limits<double>::max();

// Returns the largest number of requests in flight at one time.
int64_t MaxInFlight(std::span<const Record> records) {
  std::vector<std::pair<Clock::time_point, int>> events;
  events.reserve(2 * records.size());
  for (const Record& record : records) {
    events.emplace_back(record.outcome.sent, 1);
    events.emplace_back(record.outcome.ended, -1);
  }
  std::sort(events.begin(), events.end());  // at equal times, ends sort before starts
  int64_t now = 0, most = 0;
  for (const auto& [at, change] : events) most = std::max(most, now += change);
  return most;
}

double FirstToLast(std::span<const Record> records) {
  if (records.empty()) return 0;
  const auto ended = [](const Record& record) { return record.outcome.ended; };
  return SecondsBetween(FirstStart(records), ended(*std::ranges::max_element(records, {}, ended)));
}

// Adds one completed request to the figures.
void AddCompleted(const Record& record, const Latencies& latencies, Report& report) {
  const ServerUsage& usage = record.outcome.usage;
  ++report.completed;
  report.input_tokens += usage.prompt_tokens;
  report.output_tokens += record.outcome.tokens();
  report.ttft_ms.samples.push_back(latencies.ttft);
  report.e2e_ms.samples.push_back(latencies.e2e);
  if (latencies.tpot) report.tpot_ms.samples.push_back(*latencies.tpot);
  report.inter_token_ms.samples.insert(report.inter_token_ms.samples.end(),
                                       latencies.inter_token.begin(), latencies.inter_token.end());
  report.queue_ms.samples.push_back(usage.queue_s * kMs);
  report.prefill_ms.samples.push_back(usage.prefill_s * kMs);
  report.decode_ms.samples.push_back(usage.decode_s * kMs);
  for (const Arrival& arrival : record.outcome.arrivals) {
    report.tokens_per_chunk.samples.push_back(arrival.tokens);
  }
}

}  // namespace

double Percentile(std::span<const double> sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = rank - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

Summary Summarize(std::vector<double> samples) {
  Summary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  const double n = samples.size();
  summary.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double x : samples) squares += (x - summary.mean) * (x - summary.mean);
  summary.std = std::sqrt(squares / n);
  summary.max = samples.back();
  summary.p50 = Percentile(samples, 50);
  summary.p90 = Percentile(samples, 90);
  summary.p95 = Percentile(samples, 95);
  summary.p99 = Percentile(samples, 99);
  summary.samples = std::move(samples);
  return summary;
}

Latencies ComputeLatencies(const Record& record) {
  const Outcome& outcome = record.outcome;
  Latencies result;
  result.e2e = SecondsBetween(record.start, outcome.ended) * kMs;
  if (outcome.arrivals.empty()) return result;
  result.ttft = SecondsBetween(record.start, outcome.arrivals[0].at) * kMs;
  Clock::time_point previous = outcome.arrivals[0].at;
  bool first = true;
  for (const Arrival& arrival : outcome.arrivals) {
    // Tokens that came in one message share the wait for it; the wait for the first token is the
    // TTFT.
    const uint32_t tokens = first ? arrival.tokens - 1 : arrival.tokens;
    const double wait = SecondsBetween(previous, arrival.at) * kMs;
    for (uint32_t i = 0; i < tokens; ++i) result.inter_token.push_back(wait / tokens);
    previous = arrival.at;
    first = false;
  }
  if (!result.inter_token.empty()) {
    result.tpot = (result.e2e - result.ttft) / static_cast<double>(result.inter_token.size());
  }
  return result;
}

absl::StatusOr<Goodput> Goodput::Parse(absl::string_view text) {
  Goodput goodput;
  // The last name is that of `vllm bench serve`.
  const std::map<std::string, std::optional<double>*> fields = {{"ttft", &goodput.ttft_ms},
                                                                {"tpot", &goodput.tpot_ms},
                                                                {"e2e", &goodput.e2e_ms},
                                                                {"e2el", &goodput.e2e_ms}};
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    const auto field = fields.find(pair.first);
    const std::optional<double> bound = ParseNumber(pair.second, kLeast, kMost);
    if (field == fields.end() || field->second->has_value() || !bound) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ttft:MS, tpot:MS or e2e:MS, each at most once, with commas between them, got '",
          part, "'"));
    }
    *field->second = bound;
  }
  return goodput;
}

bool Goodput::Good(const Latencies& latencies) const {
  return latencies.ttft <= ttft_ms.value_or(latencies.ttft) &&
         latencies.e2e <= e2e_ms.value_or(latencies.e2e) &&
         latencies.tpot.value_or(0) <= tpot_ms.value_or(latencies.tpot.value_or(0));
}

double Report::goodput() const {
  return duration_s > 0 ? static_cast<double>(good.value_or(0)) / duration_s : 0;
}

double Report::good_fraction() const {
  const int64_t all = completed + failed;
  if (!good || all == 0) return 1;
  return static_cast<double>(*good) / static_cast<double>(all);
}

Report MakeReport(const RunResult& run, const std::optional<Goodput>& goodput) {
  Report report;
  std::map<int64_t, double> state_bytes;  // the largest state of each conversation
  if (goodput) report.good = 0;
  for (const Record& record : run.records) {
    report.send_delay_ms.samples.push_back(record.send_delay_s * kMs);
    const absl::Status& status = record.outcome.status;
    report.cut_off += record.cut_off;
    report.failed += record.failed();
    if (record.failed()) {
      report.errors[absl::StatusCodeToString(status.code())].Add(std::string(status.message()));
    }
    if (!record.completed()) continue;
    const Latencies latencies = ComputeLatencies(record);
    if (goodput) *report.good += goodput->Good(latencies);
    AddCompleted(record, latencies, report);
    double& bytes = state_bytes[record.conversation];
    bytes = std::max(bytes, static_cast<double>(record.outcome.usage.state_bytes));
  }
  for (const auto& [conversation, most] : state_bytes) report.state_bytes.samples.push_back(most);
  report.create_ms.samples = run.create_ms;
  for (Summary* summary :
       {&report.ttft_ms, &report.inter_token_ms, &report.tpot_ms, &report.e2e_ms, &report.create_ms,
        &report.send_delay_ms, &report.queue_ms, &report.prefill_ms, &report.decode_ms,
        &report.state_bytes, &report.tokens_per_chunk}) {
    *summary = Summarize(std::move(summary->samples));
  }
  report.max_in_flight = MaxInFlight(run.records);
  report.duration_s = FirstToLast(run.records);
  if (report.duration_s > 0) {
    const auto rate = [&](int64_t n) { return static_cast<double>(n) / report.duration_s; };
    report.request_throughput = rate(report.completed);
    report.output_throughput = rate(report.output_tokens);
    report.total_throughput = rate(report.input_tokens + report.output_tokens);
  }
  return report;
}

Clock::time_point FirstStart(std::span<const Record> records) {
  return std::ranges::min_element(records, {}, &Record::start)->start;
}

std::vector<TimelineBin> MakeTimeline(std::span<const Record> records, int bins) {
  const double duration = FirstToLast(records);
  if (duration <= 0 || bins <= 0) return {};
  std::vector<TimelineBin> timeline(static_cast<size_t>(bins));
  const double width = duration / bins;
  for (size_t i = 0; i < timeline.size(); ++i) {
    timeline[i].begin_s = static_cast<double>(i) * width;
    timeline[i].width_s = width;
  }
  const Clock::time_point begin = FirstStart(records);
  const auto bin_index = [&](double at) {
    return std::min(static_cast<size_t>(std::max(at, 0.0) / width), timeline.size() - 1);
  };
  for (const Record& record : records) {
    const double sent = SecondsBetween(begin, record.outcome.sent);
    const double ended = SecondsBetween(begin, record.outcome.ended);
    for (const Arrival& arrival : record.outcome.arrivals) {
      timeline[bin_index(SecondsBetween(begin, arrival.at))].tokens += arrival.tokens;
    }
    if (record.completed()) ++timeline[bin_index(ended)].completed;
    for (size_t i = bin_index(sent); i <= bin_index(ended); ++i) {
      const double from = std::max(sent, timeline[i].begin_s);
      const double to = std::min(ended, timeline[i].begin_s + width);
      timeline[i].in_flight += std::max(0.0, to - from) / width;
    }
  }
  return timeline;
}

}  // namespace ovq::load
