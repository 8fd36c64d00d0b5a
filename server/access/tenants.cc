#include "server/access/tenants.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/values.h"

namespace ovq::server {
namespace {

using nlohmann::json;

constexpr size_t kMaxToken = 4096;
constexpr size_t kMinStrongToken = 20;
constexpr double kMaxRate = 1e12;
constexpr double kMinWeight = 0.01, kMaxWeight = 100;

std::string Hex(const TokenDigest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

absl::StatusOr<TokenDigest> ToDigest(const json& value) {
  const std::string* text = value.get_ptr<const std::string*>();
  const bool is_hex = text != nullptr && text->size() == 2 * sizeof(TokenDigest) &&
                      std::all_of(text->begin(), text->end(),
                                  [](unsigned char c) { return absl::ascii_isxdigit(c); });
  if (!is_hex) {
    return absl::InvalidArgumentError(
        "expected 64 hex digits, the SHA-256 that ovq-server --hash-token prints");
  }
  const std::string bytes = absl::HexStringToBytes(*text);
  TokenDigest digest;
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

absl::StatusOr<int64_t> ToCount(const json& value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const bool whole = value.is_number_unsigned() && value.get<uint64_t>() <= kMost;
  if (!whole || value.get<int64_t>() == 0) {
    return absl::InvalidArgumentError("expected a whole number, at least 1");
  }
  return value.get<int64_t>();
}

absl::StatusOr<double> ToRate(const json& value) {
  const double rate = value.is_number() ? value.get<double>() : 0;
  if (rate > 0 && rate <= kMaxRate) return rate;
  return absl::InvalidArgumentError("expected a number above 0, at most 1e12");
}

absl::StatusOr<double> ToWeight(const json& value) {
  const double weight = value.is_number() ? value.get<double>() : 0;
  if (weight >= kMinWeight && weight <= kMaxWeight) return weight;
  return absl::InvalidArgumentError(
      absl::StrCat("expected a number from ", kMinWeight, " to ", kMaxWeight));
}

absl::StatusOr<size_t> ToBytes(const json& value) {
  if (const std::string* text = value.get_ptr<const std::string*>()) return ParseSize(*text);
  const absl::StatusOr<int64_t> count = ToCount(value);
  if (!count.ok()) {
    return absl::InvalidArgumentError("expected bytes, or a size like \"512M\", at least 1");
  }
  return static_cast<size_t>(*count);
}

template <class T>
absl::Status AssignIfOk(absl::StatusOr<T> value, std::optional<T>& out) {
  if (value.ok()) out = *value;
  return value.status();
}

}  // namespace

// Reads the fields of a file into a list. Every error names its place within the file.
class TenantReader {
 public:
  explicit TenantReader(TenantList& list) : list_(list) {}

  absl::Status Read(const json& root) {
    for (const auto& [key, value] : root.items()) {
      if (key != "tenants") return Bad(Quoted(key), "unknown field, expected tenants");
    }
    const auto tenants = root.find("tenants");
    if (tenants == root.end() || !tenants->is_array() || tenants->empty()) {
      return Bad("tenants", "expected an array of at least one tenant");
    }
    for (const json& tenant : *tenants) {
      // Errors name the tenant by its index until its name is known.
      const std::string index = absl::StrCat("tenants[", list_.tenants_.size(), "]");
      if (!tenant.is_object()) return Bad(index, "expected an object");
      const auto name = tenant.find("name");
      if (name == tenant.end() || !name->is_string()) return Bad(index, "name: expected a text");
      const std::string text = name->get<std::string>();
      if (!IsName(text)) return Bad(index, "name: expected 1 to 64 characters A-Z a-z 0-9 . _ -");
      if (absl::Status status = ReadTenant(text, tenant); !status.ok()) {
        return Bad(absl::StrCat("tenant ", text), status.message());
      }
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Bad(const std::string& place, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  }

  absl::Status ReadTenant(const std::string& name, const json& value) {
    if (!names_.insert(name).second) return Bad("name", "used twice");
    if (!value.contains("token_sha256")) {
      return Bad("token_sha256", "expected an array of hashes, got none");
    }
    TenantList::Tenant tenant = {.name = name, .limits = {}};
    for (const auto& [key, field] : value.items()) {
      if (key == "token_sha256") {
        RETURN_IF_ERROR(ReadTokens(field));
      } else if (key == "admin") {
        if (!field.is_boolean()) return Bad(key, "expected true or false");
        tenant.admin = field.get<bool>();
      } else if (key == "weight") {
        const absl::Status status = AssignIfOk(ToWeight(field), tenant.limits.weight);
        if (!status.ok()) return Bad(key, status.message());
      } else if (key == "limits") {
        RETURN_IF_ERROR(ReadLimits(field, tenant.limits));
      } else if (key != "name") {
        return Bad(Quoted(key), "unknown field");
      }
    }
    list_.tenants_.push_back(std::move(tenant));
    return absl::OkStatus();
  }

  absl::Status ReadTokens(const json& value) {
    if (!value.is_array() || value.empty()) {
      return Bad("token_sha256", "expected an array of at least one hash");
    }
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string field = absl::StrCat("token_sha256[", i, "]");
      const absl::StatusOr<TokenDigest> digest = ToDigest(value[i]);
      if (!digest.ok()) return Bad(field, digest.status().message());
      if (!digests_.insert(*digest).second) return Bad(field, "used twice");
      list_.tokens_.emplace_back(*digest, list_.tenants_.size());
    }
    return absl::OkStatus();
  }

  static absl::Status ReadLimits(const json& value, engine::TenantLimits& limits) {
    if (!value.is_object()) return Bad("limits", "expected an object");
    for (const auto& [key, field] : value.items()) {
      const absl::Status status =
          key == "sessions"              ? AssignIfOk(ToCount(field), limits.sessions)
          : key == "state_bytes"         ? AssignIfOk(ToBytes(field), limits.state_bytes)
          : key == "requests_per_second" ? AssignIfOk(ToRate(field), limits.requests_per_second)
          : key == "tokens_per_second"   ? AssignIfOk(ToRate(field), limits.tokens_per_second)
                                         : absl::InvalidArgumentError(
                                               "unknown field, expected sessions, state_bytes, "
                                                 "requests_per_second or tokens_per_second");
      if (!status.ok()) return Bad(absl::StrCat("limits: ", Quoted(key)), status.message());
    }
    return absl::OkStatus();
  }

  TenantList& list_;
  std::set<std::string> names_;
  std::set<TokenDigest> digests_;
};

bool IsToken(std::string_view token) {
  return !token.empty() && token.size() <= kMaxToken &&
         std::all_of(token.begin(), token.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) ||
                  std::string_view("-._~+/=").find(c) != std::string::npos;
         });
}

TokenDigest DigestToken(std::string_view token) {
  TokenDigest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<std::string> HashToken(std::string_view input) {
  absl::string_view text(input.data(), input.size());
  absl::ConsumeSuffix(&text, "\n");
  absl::ConsumeSuffix(&text, "\r");
  const std::string_view token(text.data(), text.size());
  if (!IsToken(token) || token.size() < kMinStrongToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--hash-token: expected one line with a token of ", kMinStrongToken, " to ", kMaxToken,
        " characters A-Z a-z 0-9 - . _ ~ + / =, such as openssl rand -hex 32 prints"));
  }
  return Hex(DigestToken(token));
}

absl::StatusOr<TenantList> TenantList::Parse(std::string_view text, const std::string& file) {
  const absl::StatusOr<json> root = ParseJsonObject(text, file);
  if (!root.ok()) return absl::InvalidArgumentError(root.status().message());
  TenantList list;
  const absl::Status status = TenantReader(list).Read(*root);
  if (!status.ok()) return InContext(file, status);
  return list;
}

const TenantList::Tenant* TenantList::Find(const TokenDigest& digest) const {
  // Compares all digests, each as a whole: no early exit reveals how close a guess was.
  const Tenant* found = nullptr;
  for (const auto& [known, tenant] : tokens_) {
    if (CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0) found = &tenants_[tenant];
  }
  return found;
}

std::map<std::string, engine::TenantLimits> TenantList::Limits() const {
  std::map<std::string, engine::TenantLimits> limits;
  for (const Tenant& tenant : tenants_) limits[tenant.name] = tenant.limits;
  return limits;
}

}  // namespace ovq::server
