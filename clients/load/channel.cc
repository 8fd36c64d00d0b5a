#include "clients/load/channel.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/load/files.h"

namespace ovq::load {
namespace {

constexpr size_t kMaxCredentialBytes = size_t{1} << 20;
constexpr int kKeepaliveMs = 30'000;

absl::StatusOr<std::string> ReadCredential(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxCredentialBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", text.status().message()));
  }
  return text;
}

// Empty for no file.
absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadCredential(flag, path);
  if (text.ok() && !absl::StrContains(*text, "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", path, ": expected PEM"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const ConnectOptions& options) {
  if (!options.tls()) return grpc::InsecureChannelCredentials();
  const absl::StatusOr<std::string> ca = ReadPem("tls-ca", options.tls_ca);
  const absl::StatusOr<std::string> cert = ReadPem("tls-cert", options.tls_cert);
  const absl::StatusOr<std::string> key = ReadPem("tls-key", options.tls_key);
  for (const absl::Status& status : {ca.status(), cert.status(), key.status()}) {
    if (!status.ok()) return status;
  }
  return grpc::SslCredentials(
      {.pem_root_certs = *ca, .pem_private_key = *key, .pem_cert_chain = *cert});
}

// "Bearer TOKEN"; the message of an error never shows the token.
absl::StatusOr<std::string> Authorization(const std::string& path) {
  if (path.empty()) return std::string();
  const absl::StatusOr<std::string> text = ReadCredential("token-file", path);
  if (!text.ok()) return text.status();
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  const bool printable = std::all_of(token.begin(), token.end(), absl::ascii_isgraph);
  if (token.empty() || !printable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--token-file: ", path, ": expected one token of printable characters without spaces"));
  }
  return absl::StrCat("Bearer ", token);
}

}  // namespace

absl::StatusOr<Connections> Connect(const ConnectOptions& options) {
  const auto credentials = Credentials(options);
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<std::string> authorization = Authorization(options.token_file);
  if (!authorization.ok()) return authorization.status();
  Connections result;
  result.authorization = *std::move(authorization);
  for (int i = 0; i < options.connections; ++i) {
    grpc::ChannelArguments arguments;
    // A long prompt is absorbed without a byte on the wire: pings keep middle boxes from closing.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetMaxReceiveMessageSize(-1);
    // Channels of one target share a connection otherwise.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    result.channels.push_back(grpc::CreateCustomChannel(options.target, *credentials, arguments));
  }
  return result;
}

}  // namespace ovq::load
