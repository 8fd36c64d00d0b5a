// The file of --tenants: callers, by the hash of their tokens, and the limits of each.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/common/quota.h"

namespace ovq::server {

using TokenDigest = std::array<uint8_t, 32>;  // SHA-256

// Whether it has only the characters that RFC 6750 allows in a bearer token, at most 4096.
bool IsToken(std::string_view token);
TokenDigest DigestToken(std::string_view token);

// The digest in hex that `ovq-server --hash-token` prints for the text on its input.
// InvalidArgument for text that is no token or too short for a strong one.
absl::StatusOr<std::string> HashToken(std::string_view input);

// Immutable.
class TenantList {
 public:
  struct Tenant {
    std::string name;
    bool admin = false;
    engine::TenantLimits limits;
  };

  // Errors: InvalidArgument that names the file, the tenant and the field.
  static absl::StatusOr<TenantList> Parse(std::string_view json, const std::string& file);

  // Null for an unknown digest. Takes the same time for every digest.
  const Tenant* Find(const TokenDigest& digest) const;
  std::map<std::string, engine::TenantLimits> Limits() const;
  size_t size() const { return tenants_.size(); }

 private:
  friend class TenantReader;
  std::vector<Tenant> tenants_;
  std::vector<std::pair<TokenDigest, size_t>> tokens_;  // digest and index into tenants_
};

}  // namespace ovq::server
