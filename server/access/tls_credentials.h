// gRPC server credentials whose certificate can be changed while the server runs.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "base/current.h"
#include "server/access/tls_files.h"

namespace ovq {

using TlsSource = Current<TlsMaterial>;  // the certificate in use, shared by all listeners

// For one listener: connections from now on get what is current then. TLS 1.2 or 1.3; with client
// certificates required where the source has a client CA, which is for the server's life. The
// source and the credentials must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source);

}  // namespace ovq
