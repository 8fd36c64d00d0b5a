#include "server/telemetry/metrics.h"

#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/telemetry/series.h"

namespace ovq {

const char* MethodName(Method method) {
  static constexpr std::array<const char*, kMethods> kNames = {
      "Generate",           "Chat",          "Score",         "Tokenize",      "Detokenize",
      "GetModelInfo",       "CreateSession", "GetSession",    "ListSessions",  "DeleteSession",
      "ForkSession",        "RewindSession", "ExportSession", "ImportSession", "AdminListSessions",
      "AdminDeleteSession", "AdminDrain",    "AdminGetStatus"};
  return kNames[static_cast<size_t>(method)];
}

Metrics::Metrics(const MetricsInfo& info) : series_(std::make_shared<Series>(info)) {}

Metrics::~Metrics() = default;

EngineEvents Metrics::Events() {
  Series& series = *series_;
  const auto observe = [](prometheus::Histogram& histogram) {
    return [&histogram](absl::Duration time) { histogram.Observe(absl::ToDoubleSeconds(time)); };
  };
  EngineEvents events;
  events.first_token = observe(series.first_token);
  events.next_token = observe(series.inter_token);
  events.time_per_token = observe(series.time_per_output_token);
  events.cancel_released = observe(series.cancel_release);
  events.stream_blocked = [&series](absl::Duration time) {
    series.stream_blocked.Increment(absl::ToDoubleSeconds(time));
  };
  events.rejected = [&series](RejectReason reason) {
    series.rejections.at(RejectReasonName(reason))->Increment();
  };
  events.session_event = [&series](const SessionReport& report) { series.Count(report); };
  events.step = [&series](const StepReport& report) { series.Count(report); };
  events.request_finished = [&series](const RequestReport& report) { series.Count(report); };
  return events;
}

void Metrics::SetStatsSource(std::function<EngineStats()> source) {
  series_->SetStats(std::move(source));
}

void Metrics::SetLogSource(std::function<LogCounts()> source) {
  series_->SetLog(std::move(source));
}

void Metrics::SetReady(bool ready) { series_->ready.Set(ready ? 1 : 0); }

void Metrics::SetDraining(bool draining) { series_->draining.Set(draining ? 1 : 0); }

void Metrics::CallFinished(Method method, absl::StatusCode code, absl::Duration duration) {
  const std::vector<prometheus::Counter*>& by_code = series_->calls.at(MethodName(method));
  size_t number = static_cast<size_t>(code);
  if (number >= by_code.size()) number = static_cast<size_t>(absl::StatusCode::kUnknown);
  by_code[number]->Increment();
  series_->call_duration.at(MethodName(method))->Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AuthFailed(AuthFailure reason) {
  series_->auth_failures.at(kAuthFailures[static_cast<size_t>(reason)])->Increment();
}

void Metrics::CredentialsLoaded(Credentials what) {
  // Absent until then: a server without TLS has no certificate that could be old.
  series_->credentials_loaded.Add({{"what", kCredentials[static_cast<size_t>(what)]}})
      .SetToCurrentTime();
}

void Metrics::CredentialsReloaded(Credentials what, bool ok) {
  series_->reloads
      .Add({{"what", kCredentials[static_cast<size_t>(what)]}, {"result", ok ? "ok" : "error"}})
      .Increment();
  if (ok) CredentialsLoaded(what);
}

void Metrics::SetCertificateExpiry(absl::Time time) {
  series_->certificate_expiry.Add({}).Set(static_cast<double>(absl::ToUnixSeconds(time)));
}

absl::StatusOr<int> Metrics::Expose(const std::string& address) {
  // The library reports a taken port as an exception; none crosses this line.
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(address);
    exposer_->RegisterCollectable(series_);
    return exposer_->GetListeningPorts().at(0);
  } catch (const std::exception& error) {
    exposer_.reset();
    return absl::UnavailableError(absl::StrCat("--metrics-address: cannot listen on ", address));
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(series_->Collect());
}

}  // namespace ovq
