// Limits of an HTTP server, and whom it tells its figures.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/byte_budget.h"
#include "server/access/tls.h"

namespace ovq {

struct HttpOptions {
  std::string address;                 // HOST:PORT; port 0: any; empty: none
  const char* flag = "--http-listen";  // that named the address
  size_t max_body_bytes = size_t{16} << 20;
  int max_connections = 1024;
  // From the connection to the end of the TLS handshake, and from a request's first byte to the end
  // of its header.
  absl::Duration header_timeout = absl::Seconds(10);
  absl::Duration idle_timeout = absl::Seconds(75);  // between two requests of a connection
  // For the next bytes of a body, and for the client to take the next ones of an answer.
  absl::Duration progress_timeout = absl::Seconds(60);
  absl::Duration body_timeout = absl::Minutes(5);  // for all of a body
  const TlsSource* tls = nullptr;                  // null: plain text
  std::shared_ptr<ByteBudget> memory;              // for bodies
};

// Figures of the server, called on its threads.
struct HttpEvents {
  std::function<void(int open)> connections = [](int) {};
  std::function<void(const char* why)> refused = [](const char*) {};  // of kHttpRefusals
  std::function<void(size_t received, size_t sent)> bytes = [](size_t, size_t) {};
};

}  // namespace ovq
