// Makes the runner's calls over gRPC's callback API: no thread blocks on a stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "clients/channel/channel.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/runner.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq::load {

inline ServerUsage ToUsage(const v1::Usage& from) {
  return {.prompt_tokens = static_cast<int64_t>(from.prompt_tokens()),
          .generated_tokens = static_cast<int64_t>(from.generated_tokens()),
          .state_bytes = static_cast<int64_t>(from.state_bytes()),
          .position = static_cast<int64_t>(from.position()),
          .queue_s = clients::Seconds(from.queue_time()),
          .prefill_s = clients::Seconds(from.prefill_time()),
          .decode_s = clients::Seconds(from.decode_time())};
}

// Thread-safe. All calls must have ended before it is destroyed. A context shares its channel, and
// a channel whose last owner is on a thread of gRPC's frees that thread's queue under it. So a call
// has no context any more when `done` is called, which may end the program.
class GrpcCalls {
 public:
  // Reads the credential files. InvalidArgument names the flag. `options` must outlive the object.
  static absl::StatusOr<std::unique_ptr<GrpcCalls>> Make(const Options& options) {
    std::unique_ptr<GrpcCalls> calls(new GrpcCalls(options));
    ASSIGN_OR_RETURN(const clients::Credentials credentials,
                     clients::ReadCredentials(options.connect));
    for (int i = 0; i < options.connections; ++i) {
      const clients::Connection connection =
          clients::ConnectWith(credentials, options.connect, /*own_socket=*/true);
      calls->servers_.push_back({connection, v1::InferenceService::NewStub(connection.channel),
                                 v1::SessionService::NewStub(connection.channel)});
    }
    return calls;
  }

  absl::StatusOr<ModelFacts> GetModel() {  // blocks
    grpc::ClientContext context;
    Prepare(context, std::min(kSetupTimeout, options_.timeout));
    v1::ModelInfo info;
    const grpc::Status status = Next().inference->GetModelInfo(&context, {}, &info);
    if (!status.ok()) return clients::Explained(status, options_.connect);
    if (info.vocab_size() == 0) return absl::DataLossError("the server tells no vocab_size");
    return ModelFacts{.name = info.name(),
                      .fingerprint = info.fingerprint(),
                      .device = info.device(),
                      .server_version = info.server_version(),
                      .vocab_size = info.vocab_size(),
                      .max_prompt_tokens = info.max_prompt_tokens()};
  }

  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) {  // blocks
    grpc::ClientContext context;
    Prepare(context, options_.timeout);
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    const grpc::Status status = Next().inference->Tokenize(&context, request, &response);
    if (!status.ok()) return clients::ToStatus(status);
    return std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
  }

  Calls calls();

 private:
  // A reachable server answers these calls at once.
  static constexpr absl::Duration kSetupTimeout = absl::Seconds(15);
  static constexpr absl::Duration kDeleteTimeout = absl::Seconds(10);

  class GenerateCall;
  using Sessions = v1::SessionService::StubInterface::async_interface;
  struct Server {  // stubs over one connection
    clients::Connection connection;
    std::unique_ptr<v1::InferenceService::Stub> inference;
    std::unique_ptr<v1::SessionService::Stub> sessions;
  };

  explicit GrpcCalls(const Options& options) : options_(options) {}

  const Server& Next() { return servers_[next_server_++ % servers_.size()]; }

  void Prepare(grpc::ClientContext& context, absl::Duration timeout,
               const std::string& session_key = "") const {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    servers_.front().connection.Authorize(context, session_key);
  }

  // Enter and Leave add and remove a call from those that cancel_all cancels.
  void Enter(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    live_.insert(context);
  }
  void Leave(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    live_.erase(context);
  }

  // Calls a method for sessions. `done` gets what `get` makes of the answer, or the error.
  template <class Response, class Request, class Done, class Get>
  void CallSessions(void (Sessions::*method)(grpc::ClientContext*, const Request*, Response*,
                                             std::function<void(grpc::Status)>),
                    const Request& request, absl::Duration timeout, const std::string& session_key,
                    Done done, Get get) {
    struct Call {
      std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
      Request request;
      Response response;
    };
    auto call = std::make_shared<Call>();
    call->request = request;
    grpc::ClientContext* const context = call->context.get();
    Prepare(*context, timeout, session_key);
    // Sessions are deleted also after cancel_all.
    if (!std::is_same_v<Request, v1::DeleteSessionRequest>) Enter(context);
    (Next().sessions->async()->*method)(
        context, &call->request, &call->response, [=, this](const grpc::Status& status) {
          Leave(context);
          call->context.reset();
          status.ok() ? done(get(call->response)) : done(clients::ToStatus(status));
        });
  }

  const Options& options_;
  std::vector<Server> servers_;
  std::atomic<size_t> next_server_ = 0;
  std::atomic<int64_t> tokens_received_ = 0;
  std::mutex mutex_;  // guards the next member
  std::unordered_set<grpc::ClientContext*> live_;
};

// One Generate call; deletes itself at its end. gRPC never runs two of its methods concurrently.
class GrpcCalls::GenerateCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GenerateCall(GrpcCalls& calls, GenerateSpec spec, std::function<void(Outcome)> done)
      : calls_(calls), done_(std::move(done)) {
    auto& ids = *request_.mutable_prompt()->mutable_token_ids()->mutable_ids();
    ids.Assign(spec.prompt.begin(), spec.prompt.end());
    const Options& options = calls_.options_;
    if (!spec.session_id.empty()) {
      request_.set_session_id(std::move(spec.session_id));
    } else if (options.max_centroids) {
      request_.set_max_centroids(*options.max_centroids);
    }
    request_.mutable_stop()->set_max_tokens(spec.output_tokens);
    request_.mutable_stop()->set_ignore_eos(true);
    request_.mutable_sampling()->set_seed(spec.seed);
    if (options.temperature) request_.mutable_sampling()->set_temperature(*options.temperature);
    outcome_.arrivals.reserve(std::min<size_t>(static_cast<size_t>(spec.output_tokens), 4096));
  }

  void Start() {
    calls_.Prepare(context_, calls_.options_.timeout,
                   clients::SessionKeyFromId(request_.session_id()));
    calls_.Enter(&context_);
    outcome_.sent = Clock::now();
    calls_.Next().inference->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    if (response_.has_chunk()) {
      const uint32_t tokens = response_.chunk().token_ids_size();
      if (tokens > 0) outcome_.arrivals.push_back({Clock::now(), tokens});
      calls_.tokens_received_.fetch_add(tokens, std::memory_order_relaxed);
    } else if (response_.has_finished()) {
      finished_ = true;
      outcome_.usage = ToUsage(response_.finished().usage());
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.ended = Clock::now();
    calls_.Leave(&context_);
    outcome_.status = clients::ToStatus(status);
    if (status.ok()) outcome_.status = CheckWhole();
    if (!outcome_.status.ok()) outcome_.usage = {};
    const auto done = std::move(done_);
    Outcome outcome = std::move(outcome_);
    delete this;
    done(std::move(outcome));
  }

 private:
  // Checks that an answer which ended well is complete.
  absl::Status CheckWhole() const {
    const int64_t came = outcome_.tokens();
    if (!finished_) return absl::DataLossError("the answer ended without its Finished message");
    if (came != outcome_.usage.generated_tokens) {
      return absl::DataLossError(absl::StrCat(came, " tokens came, but the server counts ",
                                              outcome_.usage.generated_tokens));
    }
    if (came == 0) return absl::DataLossError("the answer has no tokens");
    return absl::OkStatus();
  }

  GrpcCalls& calls_;
  std::function<void(Outcome)> done_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  bool finished_ = false;
  Outcome outcome_;
};

inline Calls GrpcCalls::calls() {
  Calls calls;
  calls.generate = [this](GenerateSpec spec, std::function<void(Outcome)> done) {
    (new GenerateCall(*this, std::move(spec), std::move(done)))->Start();
  };
  calls.create_session = [this](auto done) {
    v1::CreateSessionRequest request;
    if (options_.max_centroids) request.set_max_centroids(*options_.max_centroids);
    CallSessions<v1::Session>(&Sessions::CreateSession, request, options_.timeout,
                              clients::NewSessionKey(), std::move(done),
                              [](const v1::Session& session) { return session.session_id(); });
  };
  calls.get_position = [this](const std::string& id, auto done) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    CallSessions<v1::Session>(&Sessions::GetSession, request,
                              std::min(kSetupTimeout, options_.timeout),
                              clients::SessionKeyFromId(id), std::move(done),
                              [](const v1::Session& session) { return session.position(); });
  };
  calls.delete_session = [this](const std::string& id, auto done) {
    v1::DeleteSessionRequest request;
    request.set_session_id(id);
    CallSessions<v1::DeleteSessionResponse>(
        &Sessions::DeleteSession, request, kDeleteTimeout, clients::SessionKeyFromId(id),
        std::move(done), [](const v1::DeleteSessionResponse&) { return absl::OkStatus(); });
  };
  calls.cancel_all = [this] {
    const std::lock_guard lock(mutex_);
    for (grpc::ClientContext* context : live_) context->TryCancel();
  };
  calls.tokens_received = [this] { return tokens_received_.load(); };
  return calls;
}

}  // namespace ovq::load
