// The files of --tls-cert, --tls-key and --tls-client-ca, read and checked.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq {

struct TlsFiles {
  std::string cert;       // PEM: the server's certificate, then its chain; empty: no TLS
  std::string key;        // PEM, without a passphrase
  std::string client_ca;  // PEM bundle; empty: no client certificates are asked for
};

struct TlsMaterial {
  std::string cert, key, client_ca;  // PEM
  absl::Time expiry;                 // of the first certificate of the chain that expires
};

// InvalidArgument names the flag, the file and what is wrong: not to be read, not PEM, a key of
// another certificate, out of its time, or refused by OpenSSL's policy (a weak key).
absl::StatusOr<TlsMaterial> LoadTls(const TlsFiles& files, absl::Time now);

}  // namespace ovq
