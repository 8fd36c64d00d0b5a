// One HTTP request and its answer, as handlers see them: no sockets here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/byte_budget.h"

namespace ovq {

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

  virtual ~Exchange() = default;
  HttpRequest& request() { return request_; }
  // An error that stopped the reading of the request; `request` has the part before it.
  const absl::Status& fault() const { return fault_; }

  virtual const std::string& peer() const = 0;  // CallContext::peer
  // The peer's address without the port: parallel requests of one client come on many connections.
  std::string client() const { return peer().substr(0, peer().rfind(':')); }
  virtual bool gone() const = 0;  // the client closed the connection or its half
  // `gone` is called once, when the client goes, or at once if it has gone. It must not block.
  virtual void OnGone(std::function<void()> gone) = 0;
  virtual void Reply(HttpReply reply) = 0;
  virtual void Stream(HttpReply head, Source source) = 0;
  // Says that the source has something, so it is called soon. May be called before Stream.
  virtual void Pump() = 0;

 protected:
  HttpRequest request_;
  absl::Status fault_;
};

}  // namespace ovq
