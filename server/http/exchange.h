// One HTTP request and its answer, as what handles requests sees them: no sockets here.
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
  std::string target;   // path and query, as they came
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::unique_ptr<ByteHold> memory;  // what the body takes, and what will be made of it
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
};

// Any thread. Exactly one of Reply and Stream is called, once.
class Exchange {
 public:
  // Appends what is ready to `out`, false at the end: what it appends then is sent, too. Called on
  // a thread of the server's, never two calls at a time, and not while earlier parts are still to
  // be written; so whoever reads slowly is not called on. Of a client that is gone until the end,
  // what it appends then goes nowhere.
  using Source = std::function<bool(std::string& out)>;

  virtual ~Exchange() = default;
  HttpRequest& request() { return request_; }
  // What was wrong with the request before all of it was read; `request` has what came so far.
  const absl::Status& fault() const { return fault_; }

  virtual const std::string& peer() const = 0;  // CallContext::peer
  // Its address: who has many requests at a time has as many connections.
  std::string client() const { return peer().substr(0, peer().rfind(':')); }
  virtual bool gone() const = 0;  // the client, or its half of the connection
  // Called once when it goes, at once if it has gone. Must not block.
  virtual void OnGone(std::function<void()> gone) = 0;
  virtual void Reply(HttpReply reply) = 0;
  virtual void Stream(HttpReply head, Source source) = 0;
  // The source has something: it is asked soon. May come before Stream, which asks it anyway.
  virtual void Pump() = 0;

 protected:
  HttpRequest request_;
  absl::Status fault_;
};

}  // namespace ovq
