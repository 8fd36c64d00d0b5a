#include "clients/load/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ovq::load {
namespace {

constexpr double kMs = 1e3;

// The largest number of requests that were out at one time.
int64_t MaxInFlight(std::span<const Record> records) {
  std::vector<std::pair<Clock::time_point, int>> events;
  events.reserve(2 * records.size());
  for (const Record& record : records) {
    events.emplace_back(record.outcome.sent, 1);
    events.emplace_back(record.outcome.ended, -1);
  }
  std::sort(events.begin(), events.end());  // at one instant, ends come before starts
  int64_t now = 0, most = 0;
  for (const auto& [at, change] : events) most = std::max(most, now += change);
  return most;
}

double FirstToLast(std::span<const Record> records) {
  if (records.empty()) return 0;
  const auto ended = [](const Record& record) { return record.outcome.ended; };
  return SecondsBetween(FirstStart(records), ended(*std::ranges::max_element(records, {}, ended)));
}

// Samples of a run, by figure.
struct Samples {
  std::vector<double> ttft, inter_token, tpot, e2e, send_delay, queue, prefill, decode, chunk;
  std::map<int64_t, double> state_bytes;  // by conversation

  void Add(const Record& record, const Latencies& latencies) {
    ttft.push_back(latencies.ttft);
    e2e.push_back(latencies.e2e);
    if (latencies.tpot) tpot.push_back(*latencies.tpot);
    inter_token.insert(inter_token.end(), latencies.inter_token.begin(),
                       latencies.inter_token.end());
    const ServerUsage& usage = record.outcome.usage;
    queue.push_back(usage.queue_s * kMs);
    prefill.push_back(usage.prefill_s * kMs);
    decode.push_back(usage.decode_s * kMs);
    for (const Arrival& arrival : record.outcome.arrivals) chunk.push_back(arrival.tokens);
    double& bytes = state_bytes[record.conversation];
    bytes = std::max(bytes, static_cast<double>(usage.state_bytes));
  }

  void FillIn(Report& report) && {
    report.ttft_ms = Summarize(std::move(ttft));
    report.inter_token_ms = Summarize(std::move(inter_token));
    report.tpot_ms = Summarize(std::move(tpot));
    report.e2e_ms = Summarize(std::move(e2e));
    report.send_delay_ms = Summarize(std::move(send_delay));
    report.queue_ms = Summarize(std::move(queue));
    report.prefill_ms = Summarize(std::move(prefill));
    report.decode_ms = Summarize(std::move(decode));
    report.tokens_per_chunk = Summarize(std::move(chunk));
    std::vector<double> bytes;
    for (const auto& [conversation, most] : state_bytes) bytes.push_back(most);
    report.state_bytes = Summarize(std::move(bytes));
  }
};

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
  summary.count = samples.size();
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  summary.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double x : samples) squares += (x - summary.mean) * (x - summary.mean);
  summary.std = std::sqrt(squares / n);
  summary.max = samples.back();
  summary.p50 = Percentile(samples, 50);
  summary.p90 = Percentile(samples, 90);
  summary.p95 = Percentile(samples, 95);
  summary.p99 = Percentile(samples, 99);
  return summary;
}

Latencies LatenciesOf(const Record& record) {
  const Outcome& outcome = record.outcome;
  Latencies result;
  result.e2e = SecondsBetween(record.start, outcome.ended) * kMs;
  if (outcome.arrivals.empty()) return result;
  result.ttft = SecondsBetween(record.start, outcome.arrivals[0].at) * kMs;
  Clock::time_point previous = outcome.arrivals[0].at;
  bool first = true;
  for (const Arrival& arrival : outcome.arrivals) {
    // Tokens that came in one message share the wait for it; the first token's wait is the TTFT.
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
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    double bound = 0;
    std::optional<double>* field = nullptr;
    if (pair.size() == 2 && absl::SimpleAtod(pair[1], &bound) && bound > 0 &&
        std::isfinite(bound)) {
      if (pair[0] == "ttft") field = &goodput.ttft_ms;
      if (pair[0] == "tpot") field = &goodput.tpot_ms;
      // The second name is that of `vllm bench serve`.
      if (pair[0] == "e2e" || pair[0] == "e2el") field = &goodput.e2e_ms;
    }
    if (field == nullptr || field->has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ttft:MS, tpot:MS or e2e:MS, each at most once, with commas between them, got '",
          part, "'"));
    }
    *field = bound;
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

Report MakeReport(std::span<const Record> records, const std::optional<Goodput>& goodput) {
  Report report;
  Samples samples;
  if (goodput) report.good = 0;
  for (const Record& record : records) {
    samples.send_delay.push_back(record.send_delay_s * kMs);
    if (record.cut_off) ++report.cut_off;
    if (record.failed()) {
      ++report.failed;
      const absl::Status& status = record.outcome.status;
      ErrorCount& error = report.errors[absl::StatusCodeToString(status.code())];
      if (error.count++ == 0) error.first_message = std::string(status.message());
    }
    if (!record.completed()) continue;
    const Latencies latencies = LatenciesOf(record);
    if (goodput && goodput->Good(latencies)) ++*report.good;
    ++report.completed;
    report.input_tokens += record.outcome.usage.prompt_tokens;
    report.output_tokens += record.outcome.tokens();
    samples.Add(record, latencies);
  }
  std::move(samples).FillIn(report);
  report.max_in_flight = MaxInFlight(records);
  report.duration_s = FirstToLast(records);
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
  const auto bin_of = [&](double at) {
    return std::min(static_cast<size_t>(std::max(at, 0.0) / width), timeline.size() - 1);
  };
  for (const Record& record : records) {
    const double sent = SecondsBetween(begin, record.outcome.sent);
    const double ended = SecondsBetween(begin, record.outcome.ended);
    for (const Arrival& arrival : record.outcome.arrivals) {
      timeline[bin_of(SecondsBetween(begin, arrival.at))].tokens += arrival.tokens;
    }
    if (record.completed()) ++timeline[bin_of(ended)].completed;
    for (size_t i = bin_of(sent); i <= bin_of(ended); ++i) {
      const double from = std::max(sent, timeline[i].begin_s);
      const double to = std::min(ended, timeline[i].begin_s + width);
      timeline[i].in_flight += std::max(0.0, to - from) / width;
    }
  }
  return timeline;
}

}  // namespace ovq::load
