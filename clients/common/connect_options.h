// How a client reaches its server, as every program is told.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/flags.h"

namespace ovq {

struct ConnectOptions {
  std::string server = "127.0.0.1:50051";
  // Paths of PEM files. TLS is used where tls_ca or tls_cert is given; without tls_ca the server's
  // certificate is checked against the system's authorities.
  std::string tls_ca, tls_cert, tls_key;
  std::string token_file;  // its first line is the token

  bool secure() const { return !tls_ca.empty() || !tls_cert.empty(); }
};

// --server, whose default is the environment's OVQ_SERVER where that is set, and the credentials.
void AddConnection(Flags& flags, ConnectOptions& options);
// Of all that Read of the flags has set.
absl::Status CheckConnection(const ConnectOptions& options);

// --tls-ca, --tls-cert, --tls-key, --token-file alone, and their check.
void AddCredentials(Flags& flags, ConnectOptions& options);
absl::Status CheckCredentials(const ConnectOptions& options);

}  // namespace ovq
