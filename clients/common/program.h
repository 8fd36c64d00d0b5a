// Shared by the client programs: how they reach a server, exit codes, --help and --version.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/flags.h"

namespace ovq::clients {

inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // the exit status by which shells report SIGINT

// Prints "PROGRAM: MESSAGE" to stderr and returns `code`, the exit status.
int Fail(absl::string_view program, int code, absl::string_view message);

// Ends a program's output: returns `code`, the exit status, or after an error message kExitError in
// place of 0 if any output was lost.
int EndOutput(absl::string_view program, int code);

// Adds flags that print the help text, or the program's name and version, and end the program.
void AddHelpAndVersion(Flags& flags, const std::string& program, std::string (*help)());

struct ConnectOptions {
  std::string server = "127.0.0.1:50051";
  // Paths of PEM files. TLS is used if tls_ca or tls_cert is given; without tls_ca the server's
  // certificate is verified against the system's authorities.
  std::string tls_ca, tls_cert, tls_key;
  std::string token_file;  // the first line of this file is the token

  bool secure() const { return !tls_ca.empty() || !tls_cert.empty(); }
};

// Adds --server (default: the environment variable OVQ_SERVER, if set) and the credential flags.
void AddConnection(Flags& flags, ConnectOptions& options);
// Checks all of these options after the flags were parsed.
absl::Status CheckConnection(const ConnectOptions& options);

// AddCredentials adds only --tls-ca, --tls-cert, --tls-key and --token-file; CheckCredentials
// checks them.
void AddCredentials(Flags& flags, ConnectOptions& options);
absl::Status CheckCredentials(const ConnectOptions& options);

}  // namespace ovq::clients
