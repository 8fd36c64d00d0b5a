#include "clients/common/channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq {
namespace {

// Empty if all is well. An empty path leaves `text` as it is.
std::string ReadText(const char* flag, const std::string& path, std::string& text) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  text.assign(std::istreambuf_iterator<char>(file), {});
  if (file.bad() || !file.is_open()) return absl::StrCat(flag, ": ", path, ": ", strerror(errno));
  if (text.empty()) return absl::StrCat(flag, ": ", path, ": is empty");
  return "";
}

std::string ReadPem(const char* flag, const std::string& path, std::string& text) {
  if (std::string wrong = ReadText(flag, path, text); !wrong.empty() || text.empty()) return wrong;
  if (absl::StrContains(text, "-----BEGIN ")) return "";
  return absl::StrCat(flag, ": ", path, ": expected PEM");
}

std::string ReadToken(const std::string& path, std::string& authorization) {
  std::string text;
  if (std::string wrong = ReadText("--token-file", path, text); !wrong.empty() || text.empty()) {
    return wrong;
  }
  const std::string token = text.substr(0, text.find_first_of("\r\n"));
  // What metadata may hold: gRPC ends the program of a caller that passes more.
  const bool printable =
      std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (token.empty() || !printable) {
    return absl::StrCat("--token-file: ", path,
                        ": expected a token without spaces on its first line");
  }
  authorization = absl::StrCat("Bearer ", token);
  return "";
}

}  // namespace

void Connection::Authorize(grpc::ClientContext& context) const {
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
}

std::string NewSessionKey() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&key, "%08x", random());
  return key;
}

std::string SessionKeyOf(std::string_view session_id) {
  const size_t end = session_id.find('.');
  if (end == std::string_view::npos) return "";
  const std::string_view key = session_id.substr(0, end);
  // The id may be a user's typing: gRPC ends the program of a caller that passes what metadata may
  // not hold.
  const bool valid = std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_';
  });
  return valid ? std::string(key) : "";
}

void AddSessionKey(const std::string& key, grpc::ClientContext& context) {
  if (!key.empty()) context.AddMetadata("ovq-session", key);
}

std::string Connect(const ChannelOptions& options, Connection& connection) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return "--tls-cert and --tls-key go together";
  }
  grpc::SslCredentialsOptions tls;
  for (const std::string& wrong : {ReadPem("--tls-ca", options.tls_ca, tls.pem_root_certs),
                                   ReadPem("--tls-cert", options.tls_cert, tls.pem_cert_chain),
                                   ReadPem("--tls-key", options.tls_key, tls.pem_private_key),
                                   ReadToken(options.token_file, connection.authorization)}) {
    if (!wrong.empty()) return wrong;
  }
  grpc::ChannelArguments arguments;
  // A long prompt is absorbed without a byte on the wire: pings keep middle boxes from closing it.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  arguments.SetMaxReceiveMessageSize(-1);
  if (options.own_socket) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const bool secure = !options.tls_ca.empty() || !options.tls_cert.empty();
  connection.channel = grpc::CreateCustomChannel(
      options.server, secure ? grpc::SslCredentials(tls) : grpc::InsecureChannelCredentials(),
      arguments);
  return "";
}

}  // namespace ovq
