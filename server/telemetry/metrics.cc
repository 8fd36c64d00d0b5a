#include "server/telemetry/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "absl/strings/str_cat.h"
#include "server/telemetry/metrics_series.h"
#include "server/telemetry/process_stats.h"

namespace ovq {

const char* MethodName(Method method) {
  switch (method) {
    case Method::kGenerate:
      return "Generate";
    case Method::kChat:
      return "Chat";
    case Method::kScore:
      return "Score";
    case Method::kTokenize:
      return "Tokenize";
    case Method::kDetokenize:
      return "Detokenize";
    case Method::kGetModelInfo:
      return "GetModelInfo";
    case Method::kCreateSession:
      return "CreateSession";
    case Method::kGetSession:
      return "GetSession";
    case Method::kListSessions:
      return "ListSessions";
    case Method::kDeleteSession:
      return "DeleteSession";
    case Method::kForkSession:
      return "ForkSession";
    case Method::kRewindSession:
      return "RewindSession";
    case Method::kExportSession:
      return "ExportSession";
    case Method::kImportSession:
      return "ImportSession";
    case Method::kAdminListSessions:
      return "AdminListSessions";
    case Method::kAdminDeleteSession:
      return "AdminDeleteSession";
    case Method::kAdminDrain:
      return "AdminDrain";
    case Method::kAdminGetStatus:
      return "AdminGetStatus";
  }
  return "?";
}

class Metrics::Source final : public prometheus::Collectable {
 public:
  explicit Source(std::shared_ptr<Series> series) : series_(std::move(series)) {}

  void SetStats(std::function<EngineStats()> stats) {
    absl::MutexLock lock(&mutex_);
    stats_ = std::move(stats);
  }

  void SetLog(std::function<LogCounts()> counts) {
    absl::MutexLock lock(&mutex_);
    log_counts_ = std::move(counts);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    {
      // Held during the call: after SetStats(nullptr) the engine may go.
      absl::MutexLock lock(&mutex_);
      UpdateProcess(ReadProcessStats());
      if (stats_) Update(stats_());
      if (log_counts_) UpdateLog(log_counts_());
    }
    return series_->registry.Collect();
  }

 private:
  void UpdateProcess(const ProcessStats& stats) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    series_->cpu_seconds->Increment(stats.cpu_seconds - series_->cpu_seconds->Value());
    series_->resident_memory->Set(static_cast<double>(stats.resident_bytes));
    series_->virtual_memory->Set(static_cast<double>(stats.virtual_bytes));
    series_->open_fds->Set(static_cast<double>(stats.open_fds));
    series_->max_fds->Set(static_cast<double>(stats.max_fds));
    series_->threads->Set(static_cast<double>(stats.threads));
  }

  void UpdateLog(const LogCounts& counts) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto set = [](prometheus::Counter* counter, int64_t value) {
      counter->Increment(static_cast<double>(value) - counter->Value());
    };
    for (size_t i = 0; i < kLogLevels.size(); ++i) set(series_->log_lines[i], counts.written[i]);
    set(series_->log_lines_over_rate, counts.over_rate);
    set(series_->log_lines_blocked, counts.blocked);
  }

  void Update(const EngineStats& stats) const {
    const auto set = [](prometheus::Gauge* gauge, auto value) {
      gauge->Set(static_cast<double>(value));
    };
    set(series_->requests_running, stats.requests_running);
    set(series_->requests_waiting, stats.requests_waiting);
    set(series_->requests_blocked, stats.requests_blocked);
    set(series_->waiting_prompt_tokens, stats.waiting_prompt_tokens);
    set(series_->sessions_active, stats.sessions_active);
    set(series_->sessions_idle, stats.sessions_idle);
    set(series_->session_slots, stats.session_slots);
    set(series_->session_slots_used, stats.sessions_active + stats.sessions_idle);
    set(series_->state_committed, stats.state_bytes_committed);
    set(series_->state_device_memory, stats.state_bytes_committed);
    set(series_->state_reserved, stats.state_bytes_reserved);
    if (stats.gpu && series_->total_device_memory != nullptr) {
      set(series_->total_device_memory, stats.gpu->total_bytes);
      set(series_->free_device_memory, stats.gpu->free_bytes);
    }
    set(series_->state_budget, stats.state_bytes_budget);
    series_->state_utilization->Set(stats.state_bytes_budget == 0
                                        ? 0
                                        : static_cast<double>(stats.state_bytes_reserved) /
                                              static_cast<double>(stats.state_bytes_budget));
    set(series_->equivalent_kv_cache, stats.equivalent_kv_cache_bytes);
    set(series_->centroids_live, stats.live_slots);
  }

  const std::shared_ptr<Series> series_;
  mutable absl::Mutex mutex_;
  std::function<EngineStats()> stats_ ABSL_GUARDED_BY(mutex_);
  std::function<LogCounts()> log_counts_ ABSL_GUARDED_BY(mutex_);
};

Metrics::Metrics(const MetricsInfo& info)
    : series_(std::make_shared<Series>(info)), source_(std::make_shared<Source>(series_)) {}

Metrics::~Metrics() = default;

EngineEvents Metrics::Events() {
  const auto observe = [](prometheus::Histogram* histogram) {
    return [histogram](absl::Duration time) { histogram->Observe(absl::ToDoubleSeconds(time)); };
  };
  Series* const series = series_.get();
  EngineEvents events;
  events.first_token = observe(series->first_token);
  events.next_token = observe(series->inter_token);
  events.time_per_token = observe(series->time_per_output_token);
  events.cancel_released = observe(series->cancel_release);
  events.stream_blocked = [series](absl::Duration time) {
    series->stream_blocked->Increment(absl::ToDoubleSeconds(time));
  };
  events.rejected = [series](RejectReason reason) { series->rejections.at(reason)->Increment(); };
  events.session_event = [series](const SessionReport& report) { series->Count(report); };
  events.step = [series](const StepReport& report) {
    if (report.prefill_rows > 0) series->step_tokens[0]->Observe(report.prefill_rows);
    if (report.decode_rows > 0) series->step_tokens[1]->Observe(report.decode_rows);
    const int phase = report.decode_rows == 0 ? 0 : report.prefill_rows == 0 ? 1 : 2;
    series->step_duration[phase]->Observe(absl::ToDoubleSeconds(report.duration));
    if (report.dictionary_inserts + report.dictionary_merges > 0) {
      series->dictionary_inserts->Increment(static_cast<double>(report.dictionary_inserts));
      series->dictionary_merges->Increment(static_cast<double>(report.dictionary_merges));
    }
  };
  events.request_finished = [series](const RequestReport& report) { series->Count(report); };
  return events;
}

void Metrics::SetStatsSource(std::function<EngineStats()> source) {
  source_->SetStats(std::move(source));
}

void Metrics::SetLogSource(std::function<LogCounts()> source) {
  source_->SetLog(std::move(source));
}

void Metrics::SetReady(bool ready) { series_->ready->Set(ready ? 1 : 0); }

void Metrics::SetDraining(bool draining) { series_->draining->Set(draining ? 1 : 0); }

void Metrics::CallFinished(Method method, absl::StatusCode code, absl::Duration duration) {
  const size_t index = static_cast<size_t>(method);
  size_t number = static_cast<size_t>(code);
  if (number >= kStatusNames.size()) number = static_cast<size_t>(absl::StatusCode::kUnknown);
  series_->requests[index][number]->Increment();
  series_->request_duration[index]->Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AuthFailed(AuthFailure reason) {
  series_->auth_failures[static_cast<size_t>(reason)]->Increment();
}

void Metrics::CredentialsLoaded(Credentials what) {
  // Absent until then: a server without TLS has no certificate that could be old.
  series_->credentials_loaded->Add({{"what", kCredentials[static_cast<size_t>(what)]}})
      .SetToCurrentTime();
}

void Metrics::CredentialsReloaded(Credentials what, bool ok) {
  series_->credentials_reloads[static_cast<size_t>(what)][ok ? 0 : 1]->Increment();
  if (ok) CredentialsLoaded(what);
}

void Metrics::SetCertificateExpiry(absl::Time time) {
  series_->certificate_expiry->Add({}).Set(static_cast<double>(absl::ToUnixSeconds(time)));
}

absl::StatusOr<int> Metrics::Expose(const std::string& address) {
  // The library reports a taken port as an exception; none crosses this line.
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(address);
    exposer_->RegisterCollectable(source_);
    return exposer_->GetListeningPorts().at(0);
  } catch (const std::exception& error) {
    exposer_.reset();
    return absl::UnavailableError(absl::StrCat("--metrics-address: cannot listen on ", address));
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(source_->Collect());
}

}  // namespace ovq
