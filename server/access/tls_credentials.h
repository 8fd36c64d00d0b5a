// gRPC server credentials whose certificate can be changed while the server runs.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/access/tls_files.h"

namespace ovq {

// The certificate in use, shared by all listeners. Any thread.
class TlsSource {
 public:
  explicit TlsSource(TlsMaterial material);

  // Connections from now on; those that stand keep theirs. `client_ca` stays what it was: there or
  // not there.
  void Set(TlsMaterial material);
  bool asks_client() const { return asks_client_; }

  struct Version {
    std::shared_ptr<const TlsMaterial> material;
    int number = 0;  // from 1
  };
  Version current() const;

 private:
  const bool asks_client_;
  mutable absl::Mutex mutex_;
  Version current_ ABSL_GUARDED_BY(mutex_);
};

// For one listener. TLS 1.2 or 1.3; with client certificates required where the source has a
// client CA. The source and the credentials must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source);

}  // namespace ovq
