// Prometheus metrics of one server. Label sets exist from the start, so that a rate over an error
// that has not happened yet is zero and not absent. Never a session or user id as a label.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/telemetry/log.h"

namespace prometheus {
class Exposer;
}

namespace ovq {

// The RPCs, as the label `method`.
enum class Method : uint8_t {
  kGenerate,
  kChat,
  kScore,
  kTokenize,
  kDetokenize,
  kGetModelInfo,
  kCreateSession,
  kGetSession,
  kListSessions,
  kDeleteSession,
  kForkSession,
  kRewindSession,
  kExportSession,
  kImportSession,
  kAdminListSessions,
  kAdminDeleteSession,
  kAdminDrain,
  kAdminGetStatus,
};
inline constexpr int kMethods = 18;
const char* MethodName(Method method);

// Why a call was not let in.
enum class AuthFailure : uint8_t { kMissing, kMalformed, kUnknown, kForbidden };
// What is read from files and read again when they change.
enum class Credentials : uint8_t { kTls, kTenants };

// What ovq_model_info, ovq_build_info and the constant gauges say.
struct MetricsInfo {
  std::string model;  // the label of every family
  std::string version;
  std::string fingerprint;
  std::string device;
  std::string compute_dtype;
  std::string state_dtype;
  size_t weight_bytes = 0;
  bool has_gpu = false;         // its memory is told too
  bool has_dictionary = false;  // some layer grows centroids
};

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
  struct Series;
  class Source;  // what a scrape reads: the series, after the gauges were brought up to date
  std::shared_ptr<Series> series_;
  std::shared_ptr<Source> source_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace ovq
