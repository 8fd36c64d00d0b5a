// TLS: reads and checks certificates and keys that flags name, and makes gRPC server credentials
// whose certificate can change while the server runs.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/current.h"

namespace ovq::server {

struct TlsFiles {
  std::string cert = {};       // PEM: the certificate, then its chain; empty: no TLS
  std::string key = {};        // PEM, without a passphrase
  std::string client_ca = {};  // PEM bundle; empty: no client certificates are asked for
};

// The flags that name the files, for errors.
struct TlsFlags {
  const char *cert = "--tls-cert", *key = "--tls-key", *client_ca = "--tls-client-ca";
};

struct TlsMaterial {
  std::string cert, key, client_ca;  // PEM
  absl::Time expiry;                 // the earliest in the chain
};

// InvalidArgument names the flag, the file and the fault: unreadable, not PEM, a key of another
// certificate, expired or not yet valid, or refused by OpenSSL's policy (a weak key).
absl::StatusOr<TlsMaterial> LoadTls(const TlsFiles& files, absl::Time now,
                                    const TlsFlags& flags = {});

// Checks a PEM file of authorities, with the errors of LoadTls.
absl::Status CheckAuthorities(const char* flag, const std::string& path, absl::Time now);

using TlsSource = Current<TlsMaterial>;  // the certificate in use, shared by all listeners

// Credentials of one listener: each new connection gets the certificate that is current. TLS 1.2 or
// 1.3. Client certificates are required if the source has a client CA now; that does not change
// later. The source and the credentials must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source);

}  // namespace ovq::server
