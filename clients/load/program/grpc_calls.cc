#include "clients/load/program/grpc_calls.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "clients/channel/channel.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq::load {
namespace {

// A server that is there answers at once.
constexpr absl::Duration kSetupTimeout = absl::Seconds(15);
constexpr absl::Duration kDeleteTimeout = absl::Seconds(10);

ServerUsage ToUsage(const v1::Usage& from) {
  return {.prompt_tokens = static_cast<int64_t>(from.prompt_tokens()),
          .cached_tokens = static_cast<int64_t>(from.cached_tokens()),
          .generated_tokens = static_cast<int64_t>(from.generated_tokens()),
          .state_bytes = static_cast<int64_t>(from.state_bytes()),
          .position = static_cast<int64_t>(from.position()),
          .queue_s = Seconds(from.queue_time()),
          .prefill_s = Seconds(from.prefill_time()),
          .decode_s = Seconds(from.decode_time())};
}

}  // namespace

class GrpcCalls::Impl {
 public:
  Impl(const Options& options, const std::vector<Connection>& connections)
      : options_(options), authorization_(connections.front().authorization) {
    for (const Connection& connection : connections) {
      inference_.push_back(v1::InferenceService::NewStub(connection.channel));
      sessions_.push_back(v1::SessionService::NewStub(connection.channel));
    }
  }

  void Prepare(grpc::ClientContext& context, absl::Duration timeout) const {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    if (!authorization_.empty()) context.AddMetadata("authorization", authorization_);
  }
  v1::InferenceService::Stub& inference() { return *inference_[NextConnection()]; }
  v1::SessionService::Stub& sessions() { return *sessions_[NextConnection()]; }
  const Options& options() const { return options_; }

  // Between these a call is among those that CancelAll cancels.
  void Enter(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    live_.insert(context);
  }
  void Leave(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    live_.erase(context);
  }
  void CancelAll() {
    const std::lock_guard lock(mutex_);
    for (grpc::ClientContext* context : live_) context->TryCancel();
  }

  std::atomic<int64_t> tokens_received = 0;

 private:
  size_t NextConnection() { return next_connection_++ % inference_.size(); }

  const Options options_;
  const std::string authorization_;
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> inference_;
  std::vector<std::unique_ptr<v1::SessionService::Stub>> sessions_;
  std::atomic<size_t> next_connection_ = 0;
  std::mutex mutex_;
  std::unordered_set<grpc::ClientContext*> live_;
};

namespace {

// One Generate; owns itself until its end. gRPC never runs two of its methods at once.
template <class Impl>
class GenerateCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GenerateCall(std::shared_ptr<Impl> impl, GenerateSpec spec, std::function<void(Outcome)> done)
      : impl_(std::move(impl)), done_(std::move(done)) {
    auto& ids = *request_.mutable_prompt()->mutable_token_ids()->mutable_ids();
    ids.Assign(spec.prompt.begin(), spec.prompt.end());
    const Options& options = impl_->options();
    if (!spec.session_id.empty()) {
      request_.set_session_id(std::move(spec.session_id));
    } else if (options.max_centroids) {
      request_.set_max_centroids(*options.max_centroids);
    }
    request_.mutable_stop()->set_max_tokens(static_cast<uint32_t>(spec.output_tokens));
    request_.mutable_stop()->set_ignore_eos(true);
    request_.mutable_sampling()->set_seed(spec.seed);
    if (options.temperature) request_.mutable_sampling()->set_temperature(*options.temperature);
    outcome_.arrivals.reserve(std::min<size_t>(static_cast<size_t>(spec.output_tokens), 4096));
  }

  void Start() {
    impl_->Prepare(context_, impl_->options().timeout);
    AddSessionKey(SessionKeyOf(request_.session_id()), context_);
    impl_->Enter(&context_);
    outcome_.sent = Clock::now();
    impl_->inference().async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    if (response_.has_chunk()) {
      const auto tokens = static_cast<uint32_t>(response_.chunk().token_ids_size());
      if (tokens > 0) outcome_.arrivals.push_back({Clock::now(), tokens});
      impl_->tokens_received.fetch_add(tokens, std::memory_order_relaxed);
    } else if (response_.has_finished()) {
      finished_ = true;
      outcome_.usage = ToUsage(response_.finished().usage());
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.ended = Clock::now();
    impl_->Leave(&context_);
    outcome_.status = ToStatus(status);
    if (status.ok()) outcome_.status = CheckWhole();
    if (!outcome_.status.ok()) outcome_.usage = {};
    done_(std::move(outcome_));
    delete this;
  }

 private:
  // What an answer that ended well must have brought.
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

  const std::shared_ptr<Impl> impl_;
  const std::function<void(Outcome)> done_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  bool finished_ = false;
  Outcome outcome_;
};

// What a unary call needs until its end.
template <class Request, class Response>
struct Unary {
  grpc::ClientContext context;
  Request request;
  Response response;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcCalls>> GrpcCalls::Make(const Options& options) {
  std::vector<Connection> connections;
  for (int i = 0; i < options.connections; ++i) {
    absl::StatusOr<Connection> connection = Connect(options.connect, /*own_socket=*/true);
    if (!connection.ok()) return connection.status();
    connections.push_back(*std::move(connection));
  }
  return std::unique_ptr<GrpcCalls>(new GrpcCalls(std::make_shared<Impl>(options, connections)));
}

GrpcCalls::GrpcCalls(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcCalls::~GrpcCalls() = default;

absl::StatusOr<ModelFacts> GrpcCalls::GetModel() {
  Unary<v1::GetModelInfoRequest, v1::ModelInfo> call;
  impl_->Prepare(call.context, std::min(kSetupTimeout, impl_->options().timeout));
  const grpc::Status status =
      impl_->inference().GetModelInfo(&call.context, call.request, &call.response);
  if (!status.ok()) return ToStatus(status);
  const v1::ModelInfo& info = call.response;
  if (info.vocab_size() == 0) return absl::DataLossError("the server tells no vocab_size");
  return ModelFacts{.name = info.name(),
                    .fingerprint = info.fingerprint(),
                    .device = info.device(),
                    .server_version = info.server_version(),
                    .vocab_size = info.vocab_size(),
                    .max_prompt_tokens = info.max_prompt_tokens()};
}

absl::StatusOr<std::vector<uint32_t>> GrpcCalls::Tokenize(const std::string& text) {
  Unary<v1::TokenizeRequest, v1::TokenizeResponse> call;
  impl_->Prepare(call.context, impl_->options().timeout);
  call.request.set_text(text);
  const grpc::Status status =
      impl_->inference().Tokenize(&call.context, call.request, &call.response);
  if (!status.ok()) return ToStatus(status);
  return std::vector<uint32_t>(call.response.token_ids().begin(), call.response.token_ids().end());
}

Calls GrpcCalls::calls() {
  Calls calls;
  calls.generate = [impl = impl_](GenerateSpec spec, std::function<void(Outcome)> done) {
    (new GenerateCall<Impl>(impl, std::move(spec), std::move(done)))->Start();
  };
  calls.create_session = [impl = impl_](std::function<void(absl::StatusOr<std::string>)> done) {
    auto call = std::make_shared<Unary<v1::CreateSessionRequest, v1::Session>>();
    const Options& options = impl->options();
    if (options.max_centroids) call->request.set_max_centroids(*options.max_centroids);
    impl->Prepare(call->context, options.timeout);
    AddSessionKey(NewSessionKey(), call->context);
    impl->Enter(&call->context);
    impl->sessions().async()->CreateSession(
        &call->context, &call->request, &call->response,
        [impl, call, done = std::move(done)](const grpc::Status& status) {
          impl->Leave(&call->context);
          if (!status.ok()) return done(ToStatus(status));
          done(call->response.session_id());
        });
  };
  calls.delete_session = [impl = impl_](const std::string& id,
                                        std::function<void(absl::Status)> done) {
    auto call = std::make_shared<Unary<v1::DeleteSessionRequest, v1::DeleteSessionResponse>>();
    call->request.set_session_id(id);
    impl->Prepare(call->context, kDeleteTimeout);
    AddSessionKey(SessionKeyOf(id), call->context);
    impl->sessions().async()->DeleteSession(
        &call->context, &call->request, &call->response,
        [call, done = std::move(done)](const grpc::Status& status) { done(ToStatus(status)); });
  };
  calls.cancel_all = [impl = impl_] { impl->CancelAll(); };
  return calls;
}

int64_t GrpcCalls::tokens_received() const { return impl_->tokens_received; }

}  // namespace ovq::load
