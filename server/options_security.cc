// How the options that protect the server go together.
#include <arpa/inet.h>

#include "absl/strings/str_cat.h"
#include "server/options.h"
#include "server/options_values.h"

namespace ovq {

bool IsLoopback(std::string_view address) {
  const std::string host(address.substr(0, address.rfind(':')));
  in_addr v4 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

absl::Status SetFile(std::string_view text, std::string& out) {
  if (text.empty()) return Expected("a file", text);
  out = std::string(text);
  return absl::OkStatus();
}

absl::Status CheckSecurityOptions(const Options& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.tls_key.empty() ? "--tls-key" : "--tls-cert",
                     ": expected a file, got none; --tls-cert and --tls-key go together"));
  }
  if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    return absl::InvalidArgumentError("--tls-client-ca: expected --tls-cert and --tls-key with it");
  }
  if (!options.admin_listen.empty() && options.tenants.empty() &&
      !IsLoopback(options.admin_listen)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--admin-listen: expected a loopback address such as 127.0.0.1:50052, got '",
                     options.admin_listen, "'; others need --tenants, which asks for a token"));
  }
  return absl::OkStatus();
}

}  // namespace ovq
