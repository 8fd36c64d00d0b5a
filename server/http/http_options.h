// Limits of an HTTP server, and the callbacks for its figures.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/byte_budget.h"
#include "server/access/tls.h"

namespace ovq::server {

struct HttpOptions {
  std::string address;                 // HOST:PORT; port 0: any; empty: none
  const char* flag = "--http-listen";  // that named the address
  size_t max_body_bytes = size_t{16} << 20;
  int max_connections = 1024;
  // For the TLS handshake, and for a request's header from its first byte.
  absl::Duration header_timeout = absl::Seconds(10);
  absl::Duration idle_timeout = absl::Seconds(75);  // between two requests of a connection
  // Between two parts of a body, and between two parts of an answer that the client takes.
  absl::Duration progress_timeout = absl::Seconds(60);
  absl::Duration body_timeout = absl::Minutes(5);  // for a whole body
  const TlsSource* tls = nullptr;                  // null: plain text
  std::shared_ptr<ByteBudget> memory;              // for bodies
};

// Callbacks for the server's figures, on its threads.
struct HttpEvents {
  std::function<void(int open)> connections = [](int) {};
  std::function<void(const char* why)> refused = [](const char*) {};  // of kHttpRefusals
  std::function<void(size_t received, size_t sent)> bytes = [](size_t, size_t) {};
};

}  // namespace ovq::server
