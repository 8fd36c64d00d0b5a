// One HTTP request and its answer, as handlers see them, and the limits of the server that they
// come from: no sockets here.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/byte_budget.h"
#include "server/access/tls.h"
#include "server/engine/common/host_time.h"

namespace ovq::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string target;   // path and query, not decoded
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::unique_ptr<ByteHold> memory;  // of the body and what is made of it; once the answer
                                     // is there, of what is not sent
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
};

// Any thread. Its handler calls exactly one of Reply and Stream, once.
class Exchange {
 public:
  // Appends the bytes that are ready to `out`. False: the stream ends with them. Called on a thread
  // of the server, never two calls at a time, and only once the parts before are written, so a slow
  // reader holds its own source up. If the client is gone, it is still called to the end, and the
  // bytes are dropped.
  using Source = std::function<bool(std::string& out)>;

  explicit Exchange(std::string peer) : peer_(std::move(peer)), payer_(client()) {}
  virtual ~Exchange() = default;
  HttpRequest& request() { return request_; }
  // An error that stopped the reading of the request; `request` has the part before it.
  const absl::Status& fault() const { return fault_; }

  const std::string& peer() const { return peer_; }  // CallContext::peer
  // The peer's address without the port: parallel requests of one client come on many connections.
  std::string client() const { return peer_.substr(0, peer_.rfind(':')); }
  // Who is charged for the work on the connection from now on; until then, the client. On a thread
  // of the server, before HttpHandle returns.
  void SetPayer(const std::string& payer) { payer_ = payer; }
  bool gone() const { return gone_; }  // the client closed the connection or its half
  // `gone` is called once, when the client goes, or at once if it has gone. It must not block.
  void OnGone(std::function<void()> gone) {
    {
      std::lock_guard lock(mutex_);
      on_gone_ = std::move(gone);
    }
    if (gone_) CallOnGone();
  }
  // `quiet` is called, on a thread of the server, each time that HttpOptions::quiet_time has passed
  // without a byte to the client. It must not block.
  void OnQuiet(std::function<void()> quiet) {
    std::lock_guard lock(mutex_);
    on_quiet_ = std::move(quiet);
  }
  virtual void Reply(HttpReply reply) = 0;
  virtual void Stream(HttpReply head, Source source) = 0;
  // Says that the source has something, so it is called soon. May be called before Stream.
  virtual void Pump() = 0;

 protected:
  void SetGone() {
    gone_ = true;
    CallOnGone();
  }
  void CallOnQuiet() {
    std::function<void()> quiet;
    {
      std::lock_guard lock(mutex_);
      quiet = on_quiet_;
    }
    if (quiet) quiet();
  }
  void ReleaseCallbacks() {
    std::lock_guard lock(mutex_);
    on_gone_ = on_quiet_ = nullptr;
  }

  const std::string& payer() const { return payer_; }

  HttpRequest request_;
  absl::Status fault_;

 private:
  void CallOnGone() {
    std::function<void()> gone;
    {
      std::lock_guard lock(mutex_);
      gone.swap(on_gone_);
    }
    if (gone) gone();
  }

  const std::string peer_;
  std::string payer_;  // on a thread of the server only
  std::atomic<bool> gone_ = false;
  std::mutex mutex_;  // guards the members below
  std::function<void()> on_gone_, on_quiet_;
};

// Takes a request over, and must not block.
using HttpHandle = std::function<void(std::shared_ptr<Exchange>)>;

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
  // Likewise between two parts of a body, once HttpServer::EndConnections was called.
  absl::Duration ending_progress_timeout = absl::Seconds(5);
  absl::Duration body_timeout = absl::Minutes(5);         // for a whole body
  absl::Duration quiet_time = absl::Seconds(15);          // Exchange::OnQuiet
  const TlsSource* tls = nullptr;                         // null: plain text
  std::shared_ptr<ByteBudget> memory = nullptr;           // for bodies
  std::shared_ptr<engine::HostTime> host_time = nullptr;  // null: work is charged to nobody
};

// Callbacks for the server's figures, on its threads.
struct HttpEvents {
  std::function<void(int open)> connections = [](int) {};
  std::function<void(const char* why)> refused = [](const char*) {};  // of kHttpRefusals
  std::function<void(size_t received, size_t sent)> bytes = [](size_t, size_t) {};
};

}  // namespace ovq::server
