#include "server/access/auth.h"

#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::server {
namespace {

constexpr absl::string_view kScheme = "bearer ";

// The token of "Bearer TOKEN"; unset for other text.
std::optional<std::string> ParseBearerToken(const std::string& value) {
  if (!absl::StartsWithIgnoreCase(value, kScheme)) return std::nullopt;
  std::string token = value.substr(kScheme.size());
  if (!IsToken(token)) return std::nullopt;
  return token;
}

absl::Status Unauthenticated(std::string_view kind) {
  return absl::UnauthenticatedError(
      absl::StrCat(std::string(kind),
                   " authorization: expected 'Bearer TOKEN' with a token that this server knows"));
}

}  // namespace

absl::StatusOr<Caller> Authenticator::Authenticate(const CallContext& context,
                                                   Access access) const {
  if (tenants_ != nullptr) return ByToken(context, access);
  const std::optional<std::string> name = context.Value("ovq-tenant");
  if (!name) return Caller{.tenant = "", .client = context.client(), .token = std::nullopt};
  if (!IsName(*name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        context.kind(), " ovq-tenant: expected one name of 1 to 64 characters A-Z a-z 0-9 . _ -"));
  }
  return Caller{.tenant = *name, .client = context.client(), .token = std::nullopt};
}

absl::StatusOr<Caller> Authenticator::ByToken(const CallContext& context, Access access) const {
  const auto fail = [this](AuthFailure reason, absl::Status status) {
    metrics_.AuthFailed(reason);
    return status;
  };
  const std::optional<std::string> value = context.Value("authorization");
  if (!value) return fail(AuthFailure::kMissing, Unauthenticated(context.kind()));
  const std::optional<std::string> token = ParseBearerToken(*value);
  if (!token) return fail(AuthFailure::kMalformed, Unauthenticated(context.kind()));
  const TokenDigest digest = DigestToken(*token);
  const std::shared_ptr<const TenantList> tenants = tenants_->current();
  const TenantList::Tenant* tenant = tenants->Find(digest);
  if (tenant == nullptr) return fail(AuthFailure::kUnknown, Unauthenticated(context.kind()));
  const std::optional<std::string> named = context.Value("ovq-tenant");
  if (named && *named != tenant->name) {
    return fail(AuthFailure::kForbidden,
                absl::PermissionDeniedError(absl::StrCat(
                    context.kind(), " ovq-tenant: expected the token's own tenant, or none")));
  }
  if (access == Access::kAdmin && !tenant->admin) {
    return fail(AuthFailure::kForbidden,
                absl::PermissionDeniedError(
                    absl::StrCat("tenant ", tenant->name, ": expected one with \"admin\": true")));
  }
  return Caller{.tenant = tenant->name, .client = tenant->name, .token = digest};
}

absl::Status Authenticator::Recheck(const Caller& caller) const {
  if (tenants_ == nullptr || !caller.token) return absl::OkStatus();
  const std::shared_ptr<const TenantList> tenants = tenants_->current();
  const TenantList::Tenant* tenant = tenants->Find(*caller.token);
  if (tenant != nullptr && tenant->name == caller.tenant) return absl::OkStatus();
  metrics_.AuthFailed(AuthFailure::kUnknown);
  return Unauthenticated("metadata");
}

}  // namespace ovq::server
