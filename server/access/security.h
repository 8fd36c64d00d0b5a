// A server's certificate and tenants, and their reloading when the files change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/current.h"
#include "server/access/file_watcher.h"
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

class Security {
 public:
  // Reads and checks all files. InvalidArgument names the flag and the file.
  static absl::StatusOr<std::unique_ptr<Security>> Load(SecurityFiles files);

  const TlsSource* tls() const { return tls_.get(); }               // null: plain text
  const TenantRegistry* tenants() const { return tenants_.get(); }  // null: no tokens

  // Puts the tenants' limits into force and from now on reloads changed files. An invalid file
  // changes nothing and is tried again after 20 intervals; each reload is logged and counted. The
  // arguments must live until Unwatch or the end of this object.
  void Watch(engine::TenantQuotas& quotas, Metrics& metrics, Log& log, absl::Duration interval);
  void Unwatch() { watcher_.reset(); }
  // Reads all files again at the next poll, while watching. Any thread.
  void Reload() {
    if (watcher_ != nullptr) watcher_->Force();
  }

 private:
  explicit Security(SecurityFiles files) : files_(std::move(files)) {}
  absl::StatusOr<TenantList> ReadTenants() const;
  bool ReloadTls(Metrics& metrics, Log& log);  // both return whether the files are valid
  bool ReloadTenants(engine::TenantQuotas& quotas, Metrics& metrics, Log& log);

  const SecurityFiles files_;
  std::unique_ptr<TlsSource> tls_;
  std::unique_ptr<TenantRegistry> tenants_;
  std::vector<FileWatcher::Watch> watches_;  // made before the files are read; Watch takes them
  std::unique_ptr<FileWatcher> watcher_;
};

}  // namespace ovq::server
