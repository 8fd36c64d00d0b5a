#include "server/engine/common/fleet_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"

namespace ovq::engine {
namespace {

std::string HmacSha256(std::string_view key, std::string_view message) {
  std::string code(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  const bool done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                         reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                         reinterpret_cast<unsigned char*>(code.data()), &bytes) != nullptr;
  Check(done, "HMAC-SHA256 is available");
  code.resize(bytes);
  return code;
}

// Takes a time that does not tell where the two differ.
bool AreEqual(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

absl::StatusOr<FleetKeys> FleetKeys::Parse(std::string_view text) {
  std::vector<std::string> keys;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(AbslView(text), '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line.front() == '#') continue;
    const bool is_key =
        line.size() % 2 == 0 && line.size() >= 2 * kLeastBytes && line.size() <= 2 * kMostBytes &&
        std::ranges::all_of(line, [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (!is_key) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": expected a key of ", 2 * kLeastBytes, " to ", 2 * kMostBytes,
          " hex digits, as openssl rand -hex 32 prints, got ", line.size(), " characters"));
    }
    keys.push_back(absl::HexStringToBytes(line));
    if (keys.size() > kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": expected ", kMost, " keys at most"));
    }
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError("expected a line with a key, as openssl rand -hex 32 prints");
  }
  return FleetKeys(std::move(keys));
}

std::string FleetKeys::Sign(std::string_view message) const {
  return HmacSha256(keys_.front(), message);
}

bool FleetKeys::Verify(std::string_view message, std::string_view signature) const {
  return std::ranges::any_of(
      keys_, [&](const std::string& key) { return AreEqual(HmacSha256(key, message), signature); });
}

}  // namespace ovq::engine
