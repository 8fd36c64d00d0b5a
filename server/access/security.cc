#include "server/access/security.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxTenantsBytes = size_t{64} << 20;

}  // namespace

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
  const TlsFiles& tls = result->files_.tls;
  // In this order a change between the two is noticed later, at worst twice.
  result->watches_.push_back({FileSet({tls.cert, tls.key, tls.client_ca}), nullptr});
  result->watches_.push_back({FileSet({result->files_.tenants}), nullptr});
  if (!tls.cert.empty()) {
    ASSIGN_OR_RETURN(TlsMaterial material, LoadTls(tls, absl::Now()));
    result->tls_ = std::make_unique<TlsSource>(std::move(material));
  }
  if (!result->files_.tenants.empty()) {
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
  if (tls_ != nullptr) {
    metrics.CredentialsLoaded(Credentials::kTls);
    metrics.SetCertificateExpiry(tls_->current()->expiry);
  }
  if (tenants_ != nullptr) {
    metrics.CredentialsLoaded(Credentials::kTenants);
    quotas.SetLimits(tenants_->current()->Limits());
  }
  if (tls_ == nullptr && tenants_ == nullptr) return;
  watches_[0].changed = [this, &metrics, &log] {
    return tls_ == nullptr || ReloadTls(metrics, log);
  };
  watches_[1].changed = [this, &quotas, &metrics, &log] {
    return tenants_ == nullptr || ReloadTenants(quotas, metrics, log);
  };
  watcher_ = std::make_unique<FileWatcher>(std::move(watches_), interval);
}

bool Security::ReloadTls(Metrics& metrics, Log& log) {
  absl::StatusOr<TlsMaterial> material = LoadTls(files_.tls, absl::Now());
  metrics.CredentialsReloaded(Credentials::kTls, material.ok());
  if (!material.ok()) {
    log.Write(LogLevel::kWarning, LogKind::kCredentials,
              absl::StrCat("certificate not reloaded, the old one stays in use: ",
                           material.status().message()));
    return false;
  }
  metrics.SetCertificateExpiry(material->expiry);
  log.Write(LogLevel::kInfo, LogKind::kCredentials,
            absl::StrCat("certificate reloaded, valid until ",
                         absl::FormatTime(material->expiry, absl::UTCTimeZone())));
  tls_->Set(*std::move(material));
  return true;
}

bool Security::ReloadTenants(engine::TenantQuotas& quotas, Metrics& metrics, Log& log) {
  absl::StatusOr<TenantList> list = ReadTenants();
  metrics.CredentialsReloaded(Credentials::kTenants, list.ok());
  if (!list.ok()) {
    log.Write(LogLevel::kWarning, LogKind::kCredentials,
              absl::StrCat("tenants not reloaded, the old ones stay: ", list.status().message()));
    return false;
  }
  log.Write(LogLevel::kInfo, LogKind::kCredentials,
            absl::StrCat("tenants reloaded: ", list->size()));
  quotas.SetLimits(list->Limits());
  tenants_->Set(*std::move(list));
  return true;
}

}  // namespace ovq::server
