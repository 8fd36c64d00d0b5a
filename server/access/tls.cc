#include "server/access/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxFileBytes = size_t{4} << 20;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Deleter<SSL_CTX_free>>;

// A flag and its file.
struct Source {
  const char* flag;
  const std::string& path;
  std::string text = {};

  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", what));
  }
  absl::Status Read() {
    absl::StatusOr<std::string> read = ReadFile(path, kMaxFileBytes);
    if (!read.ok()) {  // the message begins with the path
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", read.status().message()));
    }
    text = *std::move(read);
    return absl::OkStatus();
  }
  Bio Open() const { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }
};

// The reason of OpenSSL's last error; removes it from the error queue.
std::string OpenSslReason() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const Source& source) {
  std::vector<Certificate> certificates;
  const Bio bio = source.Open();
  ERR_clear_error();
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  // The end of the file reads as "no start line"; anything else is damage.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = OpenSslReason();
  if (!at_end) return source.Bad("damaged PEM certificate: " + reason);
  if (certificates.empty()) return source.Bad("expected PEM certificates, found none");
  return certificates;
}

// Keeps OpenSSL from asking at a terminal for the passphrase of an encrypted key.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ReadKey(const Source& source) {
  ERR_clear_error();
  Key key(PEM_read_bio_PrivateKey(source.Open().get(), nullptr, &NoPassphrase, nullptr));
  if (key == nullptr) {
    return source.Bad("expected a PEM private key without a passphrase: " + OpenSslReason());
  }
  return key;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&fields));
}

absl::Status CheckTime(const Source& source, const X509& certificate, absl::Time now) {
  const absl::Time begin = ToTime(X509_get0_notBefore(&certificate));
  const absl::Time end = ToTime(X509_get0_notAfter(&certificate));
  const auto text = [](absl::Time time) { return absl::FormatTime(time, absl::UTCTimeZone()); };
  if (end <= now) return source.Bad(absl::StrCat("the certificate expired at ", text(end)));
  if (begin > now) {
    return source.Bad(absl::StrCat("the certificate is valid only from ", text(begin)));
  }
  return absl::OkStatus();
}

// Loads them as TLS will: that also refuses keys that are too weak.
absl::Status CheckPair(const Source& cert, const Source& key, X509* certificate, EVP_PKEY* secret) {
  if (X509_check_private_key(certificate, secret) != 1) {
    ERR_clear_error();
    return key.Bad(absl::StrCat("is not the key of the certificate in ", cert.path));
  }
  const Context context(SSL_CTX_new(TLS_server_method()));
  if (SSL_CTX_use_certificate(context.get(), certificate) != 1) return cert.Bad(OpenSslReason());
  if (SSL_CTX_use_PrivateKey(context.get(), secret) != 1) return key.Bad(OpenSslReason());
  return absl::OkStatus();
}

absl::Status CheckCertificates(const Source& source, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> certificates, ReadCertificates(source));
  // Bundles may contain expired ones; at least one must be valid.
  absl::Status status;
  for (const Certificate& certificate : certificates) {
    status = CheckTime(source, *certificate, now);
    if (status.ok()) return status;
  }
  return status;
}

// gRPC's C++ layer has certificates that never change, and a file watcher that neither checks what
// it reads nor reports failures. Its C layer asks for the certificate at every handshake through a
// callback: this is that callback, wrapped as C++ credentials.
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
  // gRPC calls it for one handshake at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<ReloadingCredentials*>(self);
    const std::shared_ptr<const TlsMaterial> current = credentials.source_.current();
    if (current == credentials.fetched_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const TlsMaterial& material = *current;
    const grpc_ssl_pem_key_cert_pair pair = {material.key.c_str(), material.cert.c_str()};
    // gRPC insists on some roots even if no client certificate will be asked for.
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

absl::StatusOr<TlsMaterial> LoadTls(const TlsFiles& files, absl::Time now, const TlsFlags& flags) {
  Source cert{flags.cert, files.cert};
  Source key{flags.key, files.key};
  Source client_ca{flags.client_ca, files.client_ca};
  for (Source* source : {&cert, &key, &client_ca}) {
    if (source->path.empty()) continue;
    RETURN_IF_ERROR(source->Read());
  }
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain, ReadCertificates(cert));
  ASSIGN_OR_RETURN(Key secret, ReadKey(key));
  TlsMaterial material;
  material.expiry = absl::InfiniteFuture();
  for (const Certificate& certificate : chain) {
    RETURN_IF_ERROR(CheckTime(cert, *certificate, now));
    material.expiry = std::min(material.expiry, ToTime(X509_get0_notAfter(certificate.get())));
  }
  RETURN_IF_ERROR(CheckPair(cert, key, chain.front().get(), secret.get()));
  if (!files.client_ca.empty()) {
    RETURN_IF_ERROR(CheckCertificates(client_ca, now));
  }
  material.cert = std::move(cert.text);
  material.key = std::move(key.text);
  material.client_ca = std::move(client_ca.text);
  return material;
}

absl::Status CheckAuthorities(const char* flag, const std::string& path, absl::Time now) {
  Source source{flag, path};
  RETURN_IF_ERROR(source.Read());
  return CheckCertificates(source, now);
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsSource& source) {
  return std::make_shared<ReloadingCredentials>(source);
}

}  // namespace ovq::server
