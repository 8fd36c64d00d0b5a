#include "server/access/security.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/thread_name.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxTenantsBytes = size_t{64} << 20;
constexpr int kRetry = 20;  // polls until files that were invalid are read again

}  // namespace

FileSet::FileSet(std::vector<std::string> paths) : paths_(std::move(paths)) {
  std::erase(paths_, "");
  known_ = seen_ = Signature();
}

std::string FileSet::Signature() const {
  std::string text;
  for (const std::string& path : paths_) {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) {
      absl::StrAppend(&text, "none;");
      continue;
    }
    absl::StrAppend(&text, info.st_dev, ",", info.st_ino, ",", info.st_size, ",");
    for (const timespec& time : {info.st_mtim, info.st_ctim}) {
      absl::StrAppend(&text, time.tv_sec, ".", time.tv_nsec, ",");
    }
    absl::StrAppend(&text, ";");
  }
  return text;
}

bool FileSet::Changed() {
  std::string now = Signature();
  const bool settled = now == seen_;
  seen_ = std::move(now);
  if (!settled || seen_ == known_) return false;
  known_ = seen_;
  return true;
}

absl::StatusOr<TenantList> Security::ReadTenants() const {
  const absl::StatusOr<std::string> text = ReadFile(files_.tenants, kMaxTenantsBytes);
  // Both error messages begin with the path.
  absl::StatusOr<TenantList> list = text.ok() ? TenantList::Parse(*text, files_.tenants)
                                              : absl::StatusOr<TenantList>(text.status());
  if (list.ok()) return list;
  return absl::InvalidArgumentError(absl::StrCat("--tenants: ", list.status().message()));
}

absl::StatusOr<std::unique_ptr<Security>> Security::Load(SecurityFiles files) {
  std::unique_ptr<Security> result(new Security(std::move(files)));
  // The sets come before the reading: a change between the two is noticed later, at worst twice.
  const TlsFiles& tls = result->files_.tls;
  if (!tls.cert.empty()) {
    result->watched_.push_back({FileSet({tls.cert, tls.key, tls.client_ca}), Credentials::kTls});
    ASSIGN_OR_RETURN(TlsMaterial material, LoadTls(tls, absl::Now()));
    result->tls_ = std::make_unique<TlsSource>(std::move(material));
  }
  if (!result->files_.tenants.empty()) {
    result->watched_.push_back({FileSet({result->files_.tenants}), Credentials::kTenants});
    ASSIGN_OR_RETURN(TenantList list, result->ReadTenants());
    result->tenants_ = std::make_unique<TenantRegistry>(std::move(list));
  }
  if (const std::string& ca = result->files_.trace_collector_ca; !ca.empty()) {
    RETURN_IF_ERROR(CheckAuthorities("--trace-collector-ca", ca, absl::Now()));
  }
  return result;
}

void Security::Watch(engine::TenantQuotas& quotas, Metrics& metrics, Log& log,
                     absl::Duration interval) {
  for (Watched& watched : watched_) {
    metrics.CredentialsLoaded(watched.what);
    if (watched.what == Credentials::kTls) {
      metrics.SetCertificateExpiry(tls_->current()->expiry);
      watched.reload = [this, &metrics] { return ReloadTls(metrics); };
    } else {
      quotas.SetLimits(tenants_->current()->Limits());
      watched.reload = [this, &quotas] { return ReloadTenants(quotas); };
    }
  }
  if (watched_.empty()) return;
  watcher_ = std::thread([this, &metrics, &log, interval] {
    NameThisThread("files");
    while (!ending_.WaitForNotificationWithTimeout(interval)) Poll(metrics, log);
  });
}

void Security::Unwatch() {
  if (!watcher_.joinable()) return;
  ending_.Notify();
  watcher_.join();
}

void Security::Poll(Metrics& metrics, Log& log) {
  const bool forced = forced_.exchange(false);
  for (Watched& watched : watched_) {
    const bool retry = watched.retry_in > 0 && --watched.retry_in == 0;
    if (!watched.files.Changed() && !retry && !forced) continue;
    const absl::StatusOr<std::string> text = watched.reload();
    watched.retry_in = text.ok() ? 0 : kRetry;
    metrics.CredentialsReloaded(watched.what, text.ok());
    log.Write(text.ok() ? LogLevel::kInfo : LogLevel::kWarning, LogKind::kCredentials,
              text.ok() ? *text : std::string(text.status().message()));
  }
}

absl::StatusOr<std::string> Security::ReloadTls(Metrics& metrics) {
  absl::StatusOr<TlsMaterial> material = LoadTls(files_.tls, absl::Now());
  if (!material.ok()) {
    return InContext("certificate not reloaded, the old one stays in use", material.status());
  }
  const absl::Time expiry = material->expiry;
  metrics.SetCertificateExpiry(expiry);
  tls_->Set(*std::move(material));
  return absl::StrCat("certificate reloaded, valid until ",
                      absl::FormatTime(expiry, absl::UTCTimeZone()));
}

absl::StatusOr<std::string> Security::ReloadTenants(engine::TenantQuotas& quotas) {
  absl::StatusOr<TenantList> list = ReadTenants();
  if (!list.ok()) return InContext("tenants not reloaded, the old ones stay", list.status());
  std::string text = absl::StrCat("tenants reloaded: ", list->size());
  quotas.SetLimits(list->Limits());
  tenants_->Set(*std::move(list));
  return text;
}

}  // namespace ovq::server
