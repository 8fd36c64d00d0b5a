// How a client reaches its server, as both programs are told.
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
};

// All but the server's address, which the programs call by names of their own.
void AddCredentials(Flags& flags, ConnectOptions& options);
absl::Status CheckCredentials(const ConnectOptions& options);

}  // namespace ovq
