// TLS: the files of --tls-cert, --tls-key and --tls-client-ca, read and checked, and gRPC server
// credentials whose certificate can be changed while the server runs.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/current.h"

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

// Of a file of authorities, PEM: the flag, the file and what is wrong with it, as above.
absl::Status CheckAuthorities(const char* flag, const std::string& path, absl::Time now);

using TlsSource = Current<TlsMaterial>;  // the certificate in use, shared by all listeners

// For one listener: connections from now on get what is current then. TLS 1.2 or 1.3; with client
// certificates required where the source has a client CA, which is for the server's life. The
// source and the credentials must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source);

}  // namespace ovq
