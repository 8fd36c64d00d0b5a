// A server's certificate and tenants, and their reloading when the files change.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/current.h"
#include "server/access/tenants.h"
#include "server/access/tls.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

using TenantRegistry = Current<TenantList>;  // the tenants in force

struct SecurityFiles {
  TlsFiles tls;                    // without a certificate: plain text
  std::string tenants;             // empty: no tokens are asked for
  std::string trace_collector_ca;  // checked here, read by TraceExporter at every connection
};

// One set of files that belong together. Not thread-safe.
class FileSet {
 public:
  // The current files count as known. Empty paths are left out.
  explicit FileSet(std::vector<std::string> paths);

  // True once after a change, as soon as two calls in a row see the same files: by then a
  // certificate and its key, written one after the other, are both there.
  bool Changed();

 private:
  std::string Signature() const;

  std::vector<std::string> paths_;
  std::string known_;
  std::string seen_;  // signature at the last call
};

class Security {
 public:
  // Reads and checks all files. InvalidArgument names the flag and the file.
  static absl::StatusOr<std::unique_ptr<Security>> Load(SecurityFiles files);

  const TlsSource* tls() const { return tls_.get(); }               // null: plain text
  const TenantRegistry* tenants() const { return tenants_.get(); }  // null: no tokens

  ~Security() { Unwatch(); }
  // Puts the tenants' limits into force and from now on polls the files, on a thread of its own,
  // and reads changed ones again. An invalid file changes nothing and is tried again after 20
  // intervals; each reload is logged and counted. Follows links, so it notices a directory that a
  // link switches (as Kubernetes mounts secrets). Once. The arguments must live until Unwatch.
  void Watch(engine::TenantQuotas& quotas, Metrics& metrics, Log& log, absl::Duration interval);
  void Unwatch();  // waits for a running reload
  // Reads all files again at the next poll, while watching. Any thread.
  void Reload() { forced_ = true; }

 private:
  // Credentials from files. Reading them again gives a text for the log.
  struct Watched {
    FileSet files;
    Credentials what;
    std::function<absl::StatusOr<std::string>()> reload = nullptr;
    int retry_in = 0;  // polls; 0: it did not fail
  };

  explicit Security(SecurityFiles files) : files_(std::move(files)) {}
  absl::StatusOr<TenantList> ReadTenants() const;
  absl::StatusOr<std::string> ReloadTls(Metrics& metrics);
  absl::StatusOr<std::string> ReloadTenants(engine::TenantQuotas& quotas);
  void Poll(Metrics& metrics, Log& log);

  const SecurityFiles files_;
  std::unique_ptr<TlsSource> tls_;
  std::unique_ptr<TenantRegistry> tenants_;
  std::vector<Watched> watched_;
  std::atomic<bool> forced_ = false;
  absl::Notification ending_;
  std::thread watcher_;
};

}  // namespace ovq::server
