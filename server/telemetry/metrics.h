// Prometheus metrics of one server. Label sets exist from the start, so that a rate over an error
// that has not happened yet is zero and not absent. Never a session or user id as a label.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metric_labels.h"

namespace prometheus {
class Exposer;
}

namespace ovq {

class Series;

// Any thread.
class Metrics {
 public:
  explicit Metrics(const MetricsInfo& info);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Callbacks for an Engine that this object outlives.
  EngineEvents Events();
  // Source of the gauges, read at every scrape; null to end it before the engine goes.
  void SetStatsSource(std::function<EngineStats()> source);
  // Source of the counts of log lines, read at every scrape; null to end it before the log goes.
  void SetLogSource(std::function<LogCounts()> source);
  void SetReady(bool ready);
  void SetDraining(bool draining);
  void CallFinished(Method method, absl::StatusCode code, absl::Duration duration);
  void AuthFailed(AuthFailure reason);
  void CredentialsLoaded(Credentials what);             // at the start
  void CredentialsReloaded(Credentials what, bool ok);  // later
  void SetCertificateExpiry(absl::Time time);

  // HTTP GET /metrics on HOST:PORT from now on; returns the port. Unavailable if it is taken.
  absl::StatusOr<int> Expose(const std::string& address);
  std::string Text() const;  // the exposition format, as a scrape sees it

 private:
  std::shared_ptr<Series> series_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace ovq
