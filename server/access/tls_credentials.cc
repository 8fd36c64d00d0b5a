#include "server/access/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <utility>

#include "base/check.h"

namespace ovq {
namespace {

// The library's C++ layer has certificates that never change, and a file watcher that neither
// checks what it reads nor reports a failure. Its C layer asks for the certificate at every
// handshake: this is that callback, and the little that makes C++ credentials of it.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(const TlsSource& source) : source_(source) {
    const auto request = !source.current()->client_ca.empty()
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, &Fetch, this));
  }
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    Check(false, "tokens are checked by the services");
  }

 private:
  // The library calls it for one handshake at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<ReloadingCredentials*>(self);
    const std::shared_ptr<const TlsMaterial> current = credentials.source_.current();
    if (current == credentials.fetched_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const TlsMaterial& material = *current;
    const grpc_ssl_pem_key_cert_pair pair = {material.key.c_str(), material.cert.c_str()};
    // The library insists on some roots, also where no client certificate will be asked for.
    const std::string& roots = material.client_ca.empty() ? material.cert : material.client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    credentials.fetched_ = current;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  const TlsSource& source_;
  grpc_server_credentials* credentials_ = nullptr;
  std::shared_ptr<const TlsMaterial> fetched_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source) {
  return std::make_shared<ReloadingCredentials>(source);
}

}  // namespace ovq
