// One HTTP request and its answer, as handlers see them: no sockets here.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/byte_budget.h"

namespace ovq::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string target;   // path and query, not decoded
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::unique_ptr<ByteHold> memory;  // of the body and what is made of it
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

  explicit Exchange(std::string peer) : peer_(std::move(peer)) {}
  virtual ~Exchange() = default;
  HttpRequest& request() { return request_; }
  // An error that stopped the reading of the request; `request` has the part before it.
  const absl::Status& fault() const { return fault_; }

  const std::string& peer() const { return peer_; }  // CallContext::peer
  // The peer's address without the port: parallel requests of one client come on many connections.
  std::string client() const { return peer_.substr(0, peer_.rfind(':')); }
  bool gone() const { return gone_; }  // the client closed the connection or its half
  // `gone` is called once, when the client goes, or at once if it has gone. It must not block.
  void OnGone(std::function<void()> gone) {
    {
      std::lock_guard lock(mutex_);
      on_gone_ = std::move(gone);
    }
    if (gone_) CallOnGone();
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
  std::function<void()> ReleaseOnGone() {
    std::lock_guard lock(mutex_);
    return std::exchange(on_gone_, nullptr);
  }

  HttpRequest request_;
  absl::Status fault_;

 private:
  void CallOnGone() {
    if (const std::function<void()> gone = ReleaseOnGone()) gone();
  }

  const std::string peer_;
  std::atomic<bool> gone_ = false;
  std::mutex mutex_;  // guards on_gone_
  std::function<void()> on_gone_;
};

}  // namespace ovq::server
