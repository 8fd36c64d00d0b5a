#include "clients/common/program.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace ovq::clients {

int Fail(absl::string_view program, int code, absl::string_view message) {
  std::fputs(absl::StrCat(program, ": ", message, "\n").c_str(), stderr);
  return code;
}

int EndOutput(absl::string_view program, int code) {
  const absl::Status status = FlushStdout();
  if (status.ok()) return code;
  return Fail(program, code == 0 ? kExitError : code, status.message());
}

void AddHelpAndVersion(Flags& flags, const std::string& program, std::string (*help)()) {
  const auto tell = [=](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::exit(EndOutput(program, 0));
  };
  flags.AddEnd(
      "help", [=] { tell(help()); }, "this text; also -h");
  flags.AddEnd(
      "version", [=] { tell(absl::StrCat(program, " ", OVQ_VERSION, "\n")); },
      "the program's name and version");
}

void AddConnection(Flags& flags, ConnectOptions& options) {
  const char* const server = std::getenv("OVQ_SERVER");
  if (server != nullptr && *server != '\0') options.server = server;
  flags.Add("server", "HOST:PORT", Address(options.server, 1),
            "the server; the environment's OVQ_SERVER changes the default");
  AddCredentials(flags, options);
}

void AddCredentials(Flags& flags, ConnectOptions& options) {
  flags.Add("tls-ca", "FILE", Text(options.tls_ca, "a file"),
            "PEM certificates that the server's must go back to; turns TLS on",
            "plain TCP; with --tls-cert the system's authorities");
  flags.Add("tls-cert", "FILE", Text(options.tls_cert, "a file"),
            "PEM certificate chain of this client, for a server that asks for one; turns TLS on");
  flags.Add("tls-key", "FILE", Text(options.tls_key, "a file"), "PEM key of --tls-cert");
  flags.Add("token-file", "FILE", Text(options.token_file, "a file"),
            "file whose first line is the bearer token, sent with every call");
}

absl::Status CheckConnection(const ConnectOptions& options) {
  // Flag values are checked while flags are parsed, so an invalid address is OVQ_SERVER's.
  std::string server;
  if (const absl::Status status = Address(server, 1).set(options.server); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("OVQ_SERVER: ", status.message()));
  }
  return CheckCredentials(options);
}

absl::Status CheckCredentials(const ConnectOptions& options) {
  if (options.tls_cert.empty() == options.tls_key.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("give --tls-cert and --tls-key together");
}

}  // namespace ovq::clients
