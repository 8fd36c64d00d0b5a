#include "server/telemetry/series.h"

#include <utility>

#include "server/telemetry/process_stats.h"

namespace ovq {
namespace {

using prometheus::Labels;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Families as they are now, all with the same constant labels.
class Reading {
 public:
  Reading(std::vector<MetricFamily>& families, Labels labels)
      : families_(families), labels_(std::move(labels)) {}

  struct Value {
    template <class T>
    Value(Labels own_labels, T number)
        : labels(std::move(own_labels)), number(static_cast<double>(number)) {}
    Labels labels;
    double number;
  };
  void Add(MetricType type, const char* name, const char* help, const std::vector<Value>& values) {
    MetricFamily& family = families_.emplace_back(MetricFamily{name, help, type, {}});
    for (const Value& value : values) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      for (const Labels* labels : {&labels_, &value.labels}) {
        for (const auto& [key, text] : *labels) metric.label.push_back({key, text});
      }
      (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value.number;
    }
  }
  void Gauges(const char* name, const char* help, const std::vector<Value>& values) {
    Add(MetricType::Gauge, name, help, values);
  }
  template <class T>
  void Gauge(const char* name, const char* help, T number) {
    Gauges(name, help, {{Labels(), number}});
  }

 private:
  std::vector<MetricFamily>& families_;
  const Labels labels_;
};

void ReadEngine(const EngineStats& stats, Reading to) {
  to.Gauge("ovq_requests_running", "Requests that hold a state and run.", stats.requests_running);
  to.Gauge("ovq_requests_waiting", "Requests that wait for admission.", stats.requests_waiting);
  to.Gauge("ovq_requests_blocked",
           "Running requests that stand still because their reader is slow.",
           stats.requests_blocked);
  to.Gauge("ovq_waiting_prompt_tokens", "Prompt tokens of the waiting requests.",
           stats.waiting_prompt_tokens);
  to.Gauges(
      "ovq_sessions", "Live sessions, one-shot requests included.",
      {{{{"state", "active"}}, stats.sessions_active}, {{{"state", "idle"}}, stats.sessions_idle}});
  to.Gauge("ovq_session_slots", "Sessions of the model's default cap that fit in the state memory.",
           stats.session_slots);
  to.Gauge("ovq_session_slots_used",
           "Live sessions of any cap; above the slots if many ask for less than the default.",
           stats.sessions_active + stats.sessions_idle);
  to.Gauges("ovq_session_state_bytes",
            "Session state: memory held now, promised to live sessions, allowed.",
            {{{{"kind", "committed"}}, stats.state_bytes_committed},
             {{{"kind", "reserved"}}, stats.state_bytes_reserved},
             {{{"kind", "budget"}}, stats.state_bytes_budget}});
  to.Gauge("ovq_session_state_utilization_ratio",
           "Reserved part of the budget: at 1 nothing more is admitted.",
           stats.state_bytes_budget == 0 ? 0
                                         : static_cast<double>(stats.state_bytes_reserved) /
                                               static_cast<double>(stats.state_bytes_budget));
  to.Gauge("ovq_equivalent_kv_cache_bytes", "What the live sessions would need as a full KV cache.",
           stats.equivalent_kv_cache_bytes);
  to.Gauge("ovq_centroids_live", "Live centroids per layer and head, summed over sessions.",
           stats.live_slots);
}

void ReadMemory(const MetricsInfo& info, const EngineStats& stats, Reading to) {
  std::vector<Reading::Value> values = {{{{"kind", "weights"}}, info.weight_bytes},
                                        {{{"kind", "state"}}, stats.state_bytes_committed}};
  if (info.has_gpu) {
    const GpuInfo gpu = stats.gpu.value_or(GpuInfo{});
    values.push_back({{{"kind", "total"}}, gpu.total_bytes});
    values.push_back({{{"kind", "free"}}, gpu.free_bytes});
  }
  to.Gauges(
      "ovq_device_memory_bytes",
      "Memory of the device, by use; of a GPU, also all of it (total, free), whoever uses it.",
      values);
}

void ReadLog(const LogCounts& counts, Reading to) {
  std::vector<Reading::Value> lines;
  for (size_t i = 0; i < kLogLevels.size(); ++i) {
    lines.push_back({{{"level", kLogLevels[i]}}, counts.written[i]});
  }
  to.Add(MetricType::Counter, "ovq_log_lines_total", "Lines of the log, by their level.", lines);
  to.Add(MetricType::Counter, "ovq_log_lines_suppressed_total",
         "Lines that were left out: over the rate of their kind, or stderr took nothing.",
         {{{{"reason", "rate"}}, counts.over_rate}, {{{"reason", "blocked"}}, counts.blocked}});
}

void ReadProcess(const ProcessStats& stats, Reading to) {
  to.Add(MetricType::Counter, "process_cpu_seconds_total",
         "Total user and system CPU time spent in seconds.", {{Labels(), stats.cpu_seconds}});
  to.Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", stats.resident_bytes);
  to.Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", stats.virtual_bytes);
  to.Gauge("process_open_fds", "Number of open file descriptors.", stats.open_fds);
  to.Gauge("process_max_fds", "Maximum number of open file descriptors.", stats.max_fds);
  to.Gauge("process_threads", "Number of threads.", stats.threads);
  to.Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
           ProcessStartTimeSeconds());
}

}  // namespace

Series::Series(const MetricsInfo& info) : info_(info) {
  auto& all_calls = Counters("ovq_requests_total", "RPCs that ended, by gRPC status code.");
  for (const auto& [method, duration] : call_duration) {
    for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      calls[method].push_back(&all_calls.Add({{"method", std::string(method)}, {"code", name}}));
    }
  }
  if (info.has_dictionary) {
    dictionary_updates = Each(Counters("ovq_dictionary_updates_total",
                                       "Tokens that chunk updates took up, per layer and head: as "
                                       "new centroids or into live ones."),
                              "op", {"insert", "merge"});
    dictionary_fill = &Histograms("ovq_dictionary_fill_ratio",
                                  "Live centroids / cap of a request's state at its end.")
                           .Add({}, Buckets{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1});
  }
  for (const char* what : kCredentials) {
    for (const char* result : {"ok", "error"}) reloads.Add({{"what", what}, {"result", result}});
  }
  Gauges("ovq_model_info", "The model served; always 1.")
      .Add({{"fingerprint", info.fingerprint},
            {"compute_dtype", info.compute_dtype},
            {"state_dtype", info.state_dtype}})
      .Set(1);
  Gauges("ovq_build_info", "The program; always 1.", false).Add({{"version", info.version}}).Set(1);
}

Labels Series::ConstantLabels(bool of_model) const {
  return of_model ? Labels{{"model", info_.model}} : Labels{};
}

prometheus::Family<prometheus::Counter>& Series::Counters(const char* name, const char* help,
                                                          bool of_model) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Labels(ConstantLabels(of_model))
      .Register(registry_);
}

prometheus::Family<prometheus::Gauge>& Series::Gauges(const char* name, const char* help,
                                                      bool of_model) {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help)
      .Labels(ConstantLabels(of_model))
      .Register(registry_);
}

prometheus::Family<prometheus::Histogram>& Series::Histograms(const char* name, const char* help) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(ConstantLabels(true))
      .Register(registry_);
}

void Series::SetStats(std::function<EngineStats()> source) {
  absl::MutexLock lock(&mutex_);
  stats_source_ = std::move(source);
}

void Series::SetLog(std::function<LogCounts()> source) {
  absl::MutexLock lock(&mutex_);
  log_source_ = std::move(source);
}

std::vector<MetricFamily> Series::Collect() const {
  std::vector<MetricFamily> families = registry_.Collect();
  ReadProcess(ReadProcessStats(), {families, {}});
  absl::MutexLock lock(&mutex_);
  if (stats_source_) stats_ = stats_source_();
  if (log_source_) log_counts_ = log_source_();
  ReadEngine(stats_, {families, ConstantLabels(true)});
  ReadMemory(info_, stats_, {families, {{"device", info_.device}}});
  ReadLog(log_counts_, {families, {}});
  return families;
}

void Series::Count(const StepReport& report) {
  if (report.prefill_rows > 0) step_tokens.at("prefill")->Observe(report.prefill_rows);
  if (report.decode_rows > 0) step_tokens.at("decode")->Observe(report.decode_rows);
  step_duration
      .at(report.decode_rows == 0    ? "prefill"
          : report.prefill_rows == 0 ? "decode"
                                     : "mixed")
      ->Observe(absl::ToDoubleSeconds(report.duration));
  if (report.dictionary_inserts + report.dictionary_merges > 0) {
    dictionary_updates.at("insert")->Increment(static_cast<double>(report.dictionary_inserts));
    dictionary_updates.at("merge")->Increment(static_cast<double>(report.dictionary_merges));
  }
}

void Series::Count(const RequestReport& report) {
  const Usage& usage = report.usage;
  queue.Observe(absl::ToDoubleSeconds(usage.queue_time));
  prefill.Observe(absl::ToDoubleSeconds(usage.prefill_time));
  prompt_tokens.Increment(static_cast<double>(usage.prompt_tokens));
  request_prompt_tokens.Observe(static_cast<double>(usage.prompt_tokens));
  if (report.dictionary_fill && dictionary_fill != nullptr) {
    dictionary_fill->Observe(*report.dictionary_fill);
  }
  if (report.score) return;  // a Score generates nothing
  finished.at(FinishReasonName(report.reason))->Increment();
  decode.Observe(absl::ToDoubleSeconds(usage.decode_time));
  generated_tokens.Increment(static_cast<double>(usage.generated_tokens));
  request_generated_tokens.Observe(static_cast<double>(usage.generated_tokens));
}

void Series::Count(const SessionReport& report) {
  session_events.at(report.event)->Increment();
  const auto duration = session_event_duration.find(report.event);
  if (duration != session_event_duration.end()) {
    duration->second->Observe(absl::ToDoubleSeconds(report.duration));
  }
  if (report.event != std::string_view("open")) {
    session_tokens.Observe(static_cast<double>(report.position));
  }
}

}  // namespace ovq
