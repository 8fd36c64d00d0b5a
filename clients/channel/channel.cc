#include "clients/channel/channel.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::clients {
namespace {

constexpr size_t kMaxCredentialBytes = size_t{4} << 20;

// Returns the content of the file that the flag names, if `good` accepts it; "" if no file is
// named.
absl::Status Read(const char* flag, const std::string& path, const char* expected,
                  bool (*good)(const std::string&), std::string& text) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> read = ReadFileOrPipe(path, kMaxCredentialBytes);
  if (!read.ok()) {  // The message begins with the path.
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", read.status().message()));
  }
  if (!good(*read)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": expected ", expected));
  }
  text = *std::move(read);
  return absl::OkStatus();
}

bool IsPem(const std::string& text) { return absl::StrContains(text, "-----BEGIN "); }

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find_first_of("\r\n"));
}

// Translates error texts of gRPC 1.51 into advice about flags; empty if no flag would help.
std::string Hint(const grpc::Status& status, const ConnectOptions& options) {
  const std::string& message = status.error_message();
  const auto says = [&message](absl::string_view text) { return absl::StrContains(message, text); };
  if (status.error_code() == grpc::UNAUTHENTICATED) {
    return options.token_file.empty()
               ? "no token was sent: --token-file is missing"
               : absl::StrCat("the token in ", options.token_file, " (--token-file) is another");
  }
  // The library says no more than that of a method that an address does not have.
  if (status.error_code() == grpc::UNIMPLEMENTED && message.empty()) {
    return "--server: this address serves other calls; expected that of --listen, or of "
           "--admin-listen for ovq-admin";
  }
  if (status.error_code() != grpc::UNAVAILABLE) return "";
  if (says("http1.x server"))
    return "--server: this address speaks HTTP/1.1; expected that of --listen, which speaks gRPC";
  if (says("certificate verify failed")) {
    return options.tls_ca.empty()
               ? "the system's authorities do not vouch for the server's certificate: --tls-ca is "
                 "missing"
               : absl::StrCat("the server's certificate is not one of those that ", options.tls_ca,
                              " (--tls-ca) vouches for");
  }
  if (says("wrong version number"))
    return "the server does not speak TLS: leave --tls-ca and --tls-cert out";
  // The server's certificate lacks the name in the address.
  if (says("Peer name")) return "--server: expected a name that is in the server's certificate";
  // A server that requires TLS or a client certificate just closes the connection.
  if (!says("failed to connect") || !says("Socket closed")) return "";
  if (!options.secure())
    return "it ended a connection without TLS: if it asks for TLS, --tls-ca is missing";
  if (options.tls_cert.empty()) {
    return "it ended a connection without a client's certificate: --tls-cert and --tls-key are "
           "missing";
  }
  return absl::StrCat("it does not take the certificate in ", options.tls_cert, " (--tls-cert)");
}

// True if the token's characters are allowed in metadata: gRPC aborts the calling process
// otherwise.
bool HasToken(const std::string& text) {
  const std::string token = FirstLine(text);
  return !token.empty() && std::ranges::all_of(token, absl::ascii_isgraph);
}

}  // namespace

absl::Status ToStatus(const grpc::Status& status) {
  // gRPC and absl number the codes alike.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status Explained(const grpc::Status& status, const ConnectOptions& options) {
  const std::string hint = Hint(status, options);
  const absl::Status plain = ToStatus(status);
  if (hint.empty()) return plain;
  const char* const separator = plain.message().empty() ? "" : "; ";
  return absl::Status(plain.code(), absl::StrCat(plain.message(), separator, hint));
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

void Connection::Authorize(grpc::ClientContext& context, const std::string& session_key) const {
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  if (!session_key.empty()) context.AddMetadata("ovq-session", session_key);
}

std::string NewSessionKey() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&key, "%08x", random());
  return key;
}

std::string SessionKeyFromId(std::string_view session_id) {
  const size_t end = session_id.find('.');
  if (end == std::string_view::npos) return "";
  const std::string_view key = session_id.substr(0, end);
  // Users may type the id: gRPC aborts the process if metadata has characters that are not allowed.
  const bool valid = std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_';
  });
  return valid ? std::string(key) : "";
}

absl::StatusOr<Credentials> ReadCredentials(const ConnectOptions& options) {
  Credentials read;
  grpc::SslCredentialsOptions& tls = read.tls;
  for (const absl::Status& status :
       {Read("--tls-ca", options.tls_ca, "PEM", IsPem, tls.pem_root_certs),
        Read("--tls-cert", options.tls_cert, "PEM", IsPem, tls.pem_cert_chain),
        Read("--tls-key", options.tls_key, "PEM", IsPem, tls.pem_private_key),
        Read("--token-file", options.token_file, "a token without spaces on its first line",
             HasToken, read.token)}) {
    if (!status.ok()) return status;
  }
  return read;
}

Connection ConnectWith(const Credentials& credentials, const ConnectOptions& options,
                       bool own_socket) {
  // Silences the library's stderr lines about failed handshakes: the call's status says the same.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  grpc::ChannelArguments arguments;
  // A long prompt is prefilled without a byte on the wire: pings keep middle boxes from closing it.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  // The library would send two and then none until it has data to send.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  // Reconnects quickly after the server has restarted.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  if (own_socket) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  Connection connection;
  connection.options = options;
  if (const std::string token = FirstLine(credentials.token); !token.empty()) {
    connection.authorization = absl::StrCat("Bearer ", token);
  }
  connection.channel = grpc::CreateCustomChannel(
      options.server,
      options.secure() ? grpc::SslCredentials(credentials.tls) : grpc::InsecureChannelCredentials(),
      arguments);
  return connection;
}

absl::StatusOr<Connection> Connect(const ConnectOptions& options) {
  ASSIGN_OR_RETURN(const Credentials credentials, ReadCredentials(options));
  return ConnectWith(credentials, options);
}

}  // namespace ovq::clients
