#include "server/session_storage.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "server/access/fleet_key_file.h"
#include "server/access/secret_file.h"
#include "server/access/tls.h"
#include "server/disk/session_folder.h"
#include "server/redis/redis_store.h"
#include "server/s3/s3_store.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxPasswordBytes = 4096, kMaxCredentialsBytes = size_t{64} << 10;
constexpr char kHarm[] = "can read and change all conversations";

std::string PlaceName(const Options& options) {
  if (options.session_store) return options.session_store->Text();
  return options.session_bucket ? options.session_bucket->Text() : options.session_dir;
}

absl::StatusOr<std::shared_ptr<store::SessionStore>> OpenFolder(const Options& options,
                                                                store::Report report) {
  ASSIGN_OR_RETURN(std::unique_ptr<disk::SessionFolder> folder,
                   disk::SessionFolder::Open(
                       {.path = options.session_dir, .sync_always = options.session_sync_always},
                       std::move(report)));
  return folder;
}

// Reads --session-store-password-file; "" without it.
absl::StatusOr<std::string> LoadStorePassword(const Options& options) {
  const std::string& path = options.session_store_password_file;
  if (path.empty()) return "";
  absl::StatusOr<std::string> text =
      ReadSecretFile(path, kMaxPasswordBytes, absl::StrCat("the password ", kHarm));
  if (!text.ok()) return InContext("--session-store-password-file", text.status());
  std::string password(absl::StripAsciiWhitespace(*text));
  if (password.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--session-store-password-file: ", path,
                                                   ": expected a password, it is empty"));
  }
  return password;
}

absl::StatusOr<s3::S3Credentials> LoadStoreCredentials(const Options& options) {
  const std::string& path = options.session_store_credentials_file;
  const absl::StatusOr<std::string> text =
      ReadSecretFile(path, kMaxCredentialsBytes, absl::StrCat("the key ", kHarm));
  if (!text.ok()) return InContext("--session-store-credentials-file", text.status());
  absl::StatusOr<s3::S3Credentials> found = s3::ParseS3Credentials(*text);
  if (found.ok()) return found;
  return InContext(absl::StrCat("--session-store-credentials-file: ", path), found.status());
}

// Checks the files for TLS, which each new connection reads.
absl::Status CheckStoreTls(const Options& options) {
  const TlsTrust& tls = options.session_store_tls;
  if (!tls.ca.empty()) {
    RETURN_IF_ERROR(CheckAuthorities("--session-store-ca", tls.ca, absl::Now()));
  }
  if (!tls.cert.empty()) {
    return LoadTls({.cert = tls.cert, .key = tls.key}, absl::Now(),
                   {.cert = "--session-store-cert", .key = "--session-store-key"})
        .status();
  }
  return absl::OkStatus();
}

// Sets the times that follow from the lease, of either kind of store.
template <class StoreOptions>
void SetTimes(const Options& options, absl::Duration margin, StoreOptions& store) {
  store.lease = options.session_lease.value_or(store.lease);
  store.reply_timeout = std::min(store.reply_timeout, std::max(store.lease / 3, absl::Seconds(1)));
  store.ownership_timeout = store.lease + margin;
}

absl::StatusOr<std::shared_ptr<store::SessionStore>> OpenRedis(const Options& options,
                                                               store::Report report, Log& log) {
  redis::RedisStoreOptions redis = {.address = *options.session_store};
  if (redis.address.tls) redis.address.tls = options.session_store_tls;
  ASSIGN_OR_RETURN(redis.address.password, LoadStorePassword(options));
  SetTimes(options, absl::Seconds(1), redis);
  redis.replicas = options.session_store_replicas.value_or(0);
  std::vector<std::string> warnings;
  ASSIGN_OR_RETURN(std::unique_ptr<redis::RedisStore> store,
                   redis::RedisStore::Open(redis, std::move(report), &warnings));
  for (const std::string& warning : warnings) {
    log.Warning(absl::StrCat("--session-store: ", warning));
  }
  return store;
}

absl::StatusOr<std::shared_ptr<store::SessionStore>> OpenBucket(const Options& options,
                                                                store::Report report) {
  s3::S3StoreOptions bucket = {.address = *options.session_bucket};
  bucket.address.region = options.session_store_region;
  bucket.address.endpoint =
      options.session_store_endpoint.value_or(s3::AmazonEndpoint(bucket.address.region));
  bucket.address.endpoint.ca = options.session_store_tls.ca;
  ASSIGN_OR_RETURN(bucket.credentials, LoadStoreCredentials(options));
  SetTimes(options, absl::Seconds(2), bucket);
  ASSIGN_OR_RETURN(std::unique_ptr<s3::S3Store> store,
                   s3::S3Store::Open(bucket, std::move(report)));
  return store;
}

}  // namespace

absl::Status CheckStoreSecrets(const Options& options) {
  RETURN_IF_ERROR(CheckStoreTls(options));
  if (options.session_bucket) return LoadStoreCredentials(options).status();
  return LoadStorePassword(options).status();
}

absl::StatusOr<SessionStorage> OpenSessionStorage(const Options& options, Metrics& metrics,
                                                  Log& log) {
  if (!options.keeps_sessions()) return SessionStorage{};
  RETURN_IF_ERROR(CheckStoreTls(options));
  const char* const option = options.shares_sessions() ? "--session-store" : "--session-dir";
  const store::Report report = [&metrics, &log](const store::StoreReport& report) {
    metrics.Count(report);
    if (!report.status.ok()) log.Error(report.status);
  };
  absl::StatusOr<std::shared_ptr<store::SessionStore>> store =
      options.session_store    ? OpenRedis(options, report, log)
      : options.session_bucket ? OpenBucket(options, report)
                               : OpenFolder(options, report);
  if (!store.ok()) return InContext(option, store.status());
  absl::StatusOr<store::RecoveredSessions> found = (*store)->Recover();
  if (!found.ok()) return InContext(option, found.status());
  metrics.damaged_sessions.Set(found->damaged.size());
  return SessionStorage{*std::move(store), *std::move(found)};
}

void AdoptSessions(const Options& options, store::RecoveredSessions found, engine::Engine& engine,
                   Log& log) {
  if (!options.keeps_sessions()) return;
  const size_t n = found.sessions.size(), elsewhere = found.elsewhere;
  const std::vector<std::string> left = engine.sessions().Adopt(std::move(found.sessions));
  const std::string place = PlaceName(options);
  for (const std::string& one : left) {
    log.Warning(absl::StrCat(one, ": stays in ", place, " as it is"));
  }
  log.Info(absl::StrCat(
      n - left.size(), " sessions found in ", place,
      elsewhere > 0 ? absl::StrCat(", ", elsewhere, " more that other servers have") : ""));
}

absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> LoadNamedFleetKeys(
    const Options& options) {
  if (options.fleet_key_file.empty()) return nullptr;
  auto keys = LoadFleetKeys(options.fleet_key_file);
  return keys.ok() ? keys : InContext("--fleet-key-file", keys.status());
}

absl::Status AddOwnFleetKey(const Options& options, engine::EngineOptions& engine_options) {
  const bool needed = !options.session_dir.empty() && !options.engine.trust_session_files;
  if (engine_options.fleet_keys != nullptr || !needed) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> keys = FleetKeysIn(options.session_dir);
  if (!keys.ok()) return InContext("--session-dir", keys.status());
  engine_options.fleet_keys = *std::move(keys);
  return absl::OkStatus();
}

}  // namespace ovq::server
