// The file of --tenants: who may call, known by the hash of a token, and what each may use.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/quota.h"

namespace ovq {

using TokenDigest = std::array<uint8_t, 32>;  // SHA-256

// The characters that RFC 6750 allows in a bearer token, at most 4096 of them.
bool IsToken(std::string_view token);
TokenDigest DigestToken(std::string_view token);

// What `ovq-server --hash-token` prints for the text on its input: the digest in hex.
// InvalidArgument for what is no token, or too short to be a strong one.
absl::StatusOr<std::string> HashToken(std::string_view input);

// Immutable.
class TenantList {
 public:
  struct Tenant {
    std::string name;
    bool admin = false;
    TenantLimits limits;
  };

  // InvalidArgument names the file, the tenant and the field.
  static absl::StatusOr<TenantList> Parse(std::string_view json, const std::string& file);

  // Null for an unknown one. The time does not depend on which it is, or how much of it is right.
  const Tenant* Find(const TokenDigest& digest) const;
  std::map<std::string, TenantLimits> Limits() const;
  size_t size() const { return tenants_.size(); }

 private:
  friend class TenantReader;
  std::vector<Tenant> tenants_;
  std::vector<std::pair<TokenDigest, size_t>> tokens_;  // digest, index of the tenant
};

}  // namespace ovq
