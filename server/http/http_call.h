// An HTTP request as a call: its caller, memory, record and answer.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/calls/service_context.h"
#include "server/http/exchange.h"

namespace ovq::server {

// Held by whoever will answer it, so it lives until then.
class HttpCall final : public CallContext, public std::enable_shared_from_this<HttpCall> {
 public:
  // route: one of HttpRouteLabels. headers: of its answer, whatever that is.
  HttpCall(ServiceContext& services, const char* route, std::shared_ptr<Exchange> exchange,
           HttpHeaders headers, CallRecord::Shown shown = CallRecord::Shown::kYes);

  // --- CallContext ---
  std::string peer() const override { return exchange_->peer(); }
  std::string client() const override { return exchange_->client(); }
  std::vector<std::string> Values(const char* name) const override;
  const char* kind() const override { return "header"; }
  SteadyTime deadline() const override { return kNever; }
  bool cancelled() const override { return exchange_->gone(); }

  ServiceContext& services() { return record_.services(); }
  CallRecord& record() { return record_; }
  // Gives a call without a key for balancers this one, as if the client had sent it.
  void SetSessionKey(const std::string& text);
  const HttpRequest& request() const { return exchange_->request(); }
  std::string_view path() const { return path_; }
  // The decoded value of a query parameter; unset without it.
  std::optional<std::string> Query(std::string_view name) const;
  // Also unset without a value.
  absl::StatusOr<std::optional<uint32_t>> QueryNumber(const char* name) const;
  // Refuses a query parameter that is not one of `names`, which end with the first null.
  absl::Status CheckQuery(std::span<const char* const> names) const;
  const Caller& caller() const { return record_.caller(); }
  Exchange& exchange() { return *exchange_; }

  // --- the answer, once ---
  void Reply(int status, std::string body, std::string content_type = "application/json");
  void Reply(HttpReply reply);            // its own headers are kept
  void Fail(const absl::Status& status);  // in the form of OpenAI's errors
  // Source of a stream of server-sent events (text/event-stream): Exchange::Source, which at the
  // end also sets the call's status.
  using Events = std::function<bool(std::string& out, absl::Status& status)>;
  void Stream(Events events);

 private:
  HttpHeaders AnswerHeaders();
  // Adds a request header as if the client had sent it.
  void AddHeader(std::string name, std::string value) {
    exchange_->request().headers.emplace_back(std::move(name), std::move(value));
  }
  // answer_bytes: those that the exchange has still to send; it gets their memory.
  void End(int http_status, const absl::Status& status, size_t answer_bytes);

  const std::shared_ptr<Exchange> exchange_;
  const char* const route_;
  const HttpHeaders headers_;
  CallRecord record_;
  std::string_view path_, query_;
};

using HttpCallPtr = std::shared_ptr<HttpCall>;

// Decodes %XX and, as in queries, + to a space.
std::string DecodeUrl(std::string_view text, bool plus_is_space = true);

}  // namespace ovq::server
