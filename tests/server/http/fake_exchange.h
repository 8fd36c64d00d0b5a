// An HTTP request without a socket, and its answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/http/exchange.h"
#include "server/apis/http_api.h"

namespace ovq::server::test {

class FakeExchange final : public Exchange {
 public:
  FakeExchange(std::string method, std::string target, std::string body = {},
               HttpHeaders headers = {}, std::string peer = "ipv4:127.0.0.1:1")
      : Exchange(std::move(peer)) {
    request_.method = std::move(method);
    request_.target = std::move(target);
    request_.headers = std::move(headers);
    request_.headers.emplace_back("host", "localhost");
    request_.headers.emplace_back("content-type", "application/json");
    request_.body = std::move(body);
  }

  void Reply(HttpReply reply) override {
    std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
    ended_ = true;
    cv_.notify_all();
  }
  void Stream(HttpReply head, Source source) override {
    std::lock_guard lock(mutex_);
    reply_ = std::move(head);
    source_ = std::move(source);
    pumped_ = true;
    cv_.notify_all();
  }
  void Pump() override {
    std::lock_guard lock(mutex_);
    pumped_ = true;
    cv_.notify_all();
  }

  void Quiet() { CallOnQuiet(); }  // as when nothing was sent for a while
  // The client goes away and reads no more.
  void Leave() { SetGone(); }
  // Reads until the end of the answer, or until `enough` accepts the body so far. False: neither
  // happened within `time`. One thread at a time.
  bool Read(absl::Duration time, const std::function<bool(const std::string&)>& enough = nullptr) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(time);
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (enough && enough(reply_.body)) return true;
      if (std::chrono::steady_clock::now() >= end ||
          !cv_.wait_until(lock, end, [this] { return ended_ || (pumped_ && source_); })) {
        return false;
      }
      if (ended_) break;
      pumped_ = false;
      std::string part;
      lock.unlock();
      const bool more = source_(part);
      lock.lock();
      reply_.body += part;
      ended_ = !more;
    }
    lock.unlock();
    source_ = nullptr;
    return true;
  }
  const HttpReply& reply() const { return reply_; }
  bool streamed() const { return reply_.content_type.starts_with("text/event-stream"); }

 private:
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable cv_;
  bool ended_ = false, pumped_ = false;
  HttpReply reply_;
  Source source_;
};

}  // namespace ovq::server::test
