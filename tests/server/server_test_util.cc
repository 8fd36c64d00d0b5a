#include "tests/server/server_test_util.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/apis/http_api.h"
#include "server/calls/rpc_labels.h"
#include "tests/test_util.h"

namespace ovq::server::test {
namespace {

ModelDescription Description() {
  return {.names = {"fake", "org/fake"},
          .fingerprint = "0123",
          .hidden_size = 8,
          .parameters = 1000,
          .bos_token_id = std::nullopt,
          .device = "cpu",
          .compute_dtype = "f32",
          .weights = "int8",
          .products = {},
          .state_dtype = "f32",
          .cache_policies = "model",
          .weight_bytes = 4000,
          .has_gpu = false,
          .has_dictionary = true};
}

}  // namespace

TestServer::TestServer(TestServerOptions options)
    : model_(options.model),
      log_(options.log, log_file_.fd()),
      metrics_(Description(), {.methods = RpcLabels(), .routes = HttpRouteLabels()}) {
  if (options.setup) options.setup(model_);
  engine_ = std::make_unique<engine::EngineThread>(
      model_.Make(), options.engine, kernels::test::MakeContext(kernels::Device::kCpu),
      metrics_.Events());
  metrics_.SetSource<engine::EngineStats>([this] { return engine().Stats(); });
  metrics_.SetSource<LogCounts>([this] { return log_.counts(); });
  if (options.tenants) {
    tenants_ = std::make_unique<TenantRegistry>(*std::move(options.tenants));
    engine().quotas().SetLimits(tenants_->current()->Limits());
  }
  services_ = std::make_unique<ServiceContext>(engine(), Description(), metrics_,
                                               CallLog{log_, options.log_requests}, tenants_.get());
  ListenOptions listen;
  listen.address = "127.0.0.1:0";
  listen.max_message_bytes = options.max_message_bytes;
  absl::StatusOr<std::unique_ptr<GrpcServer>> server =
      GrpcServer::Start(listen, ClientServices(*services_));
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  channel_ = NewChannel();
  inference_ = v1::InferenceService::NewStub(channel_);
  sessions_ = v1::SessionService::NewStub(channel_);
}

TestServer::~TestServer() {
  model_.gate().Open();
  server_->Shutdown(absl::Now() + absl::Seconds(1));
  metrics_.SetSource<engine::EngineStats>(nullptr);
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

std::string TestServer::LogText() {
  EXPECT_TRUE(log_.Flush(absl::Seconds(10)));
  return log_file_.Text();
}

engine::EngineStats TestServer::WaitForStats(
    const std::function<bool(const engine::EngineStats&)>& condition) {
  engine::EngineStats stats;
  for (int i = 0; i < 3000; ++i) {
    stats = engine().Stats();
    if (condition(stats)) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "the engine's figures did not come: " << stats.requests_running << " running, "
                << stats.sessions_active << " active, " << stats.sessions_idle << " idle";
  return stats;
}

std::string TestServer::NewSession(const v1::CreateSessionRequest& request) {
  grpc::ClientContext context;
  v1::Session session;
  const grpc::Status status = sessions_->CreateSession(&context, request, &session);
  EXPECT_THAT(status, Succeeds());
  return session.session_id();
}

void Collected::Add(const v1::TokenChunk& chunk) {
  ++chunks;
  tokens.insert(tokens.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  logprobs.insert(logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
  text += chunk.text();
}

Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return Generate(stub, request, context);
}

Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request,
                   grpc::ClientContext& context) {
  Collected result;
  const auto reader = stub.Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (response.has_started()) result.started = response.started();
    if (response.has_chunk()) result.Add(response.chunk());
    if (response.has_finished()) result.finished.push_back(response.finished());
  }
  result.status = reader->Finish();
  return result;
}

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  request.mutable_sampling()->set_seed(1);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_output()->set_logprobs(true);
  return request;
}

v1::GenerateRequest TokenRequest(const std::vector<uint32_t>& ids, uint32_t max_tokens) {
  v1::GenerateRequest request = TextRequest("", max_tokens);
  request.mutable_prompt()->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

v1::ErrorInfo GetErrorInfo(const grpc::Status& status) {
  v1::ErrorStatus details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  v1::ErrorInfo info;
  EXPECT_EQ(details.details_size(), 1);
  EXPECT_TRUE(details.details_size() == 1 && details.details(0).UnpackTo(&info));
  return info;
}

grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& message, std::string& answer) {
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice all;
  answer.clear();
  if (response.Valid() && response.DumpToSingleSlice(&all).ok()) {
    answer.assign(reinterpret_cast<const char*>(all.begin()), all.size());
  }
  return status;
}

v1::ChatRequest OpenMessage() {
  v1::ChatRequest message;
  message.mutable_open();
  return message;
}

v1::ChatRequest TurnMessage(const std::string& text, uint32_t max_tokens, bool more) {
  v1::ChatRequest message;
  v1::ChatTurn& turn = *message.mutable_turn();
  turn.mutable_prompt()->set_text(text);
  turn.mutable_sampling()->set_seed(1);
  turn.mutable_stop()->set_max_tokens(max_tokens);
  turn.set_more(more);
  return message;
}

v1::ChatRequest CancelMessage() {
  v1::ChatRequest message;
  message.mutable_cancel();
  return message;
}

bool ReadTurn(ChatStream& stream, Collected& turn) {
  for (v1::ChatResponse response; stream.Read(&response);) {
    if (response.has_started()) turn.started = response.started();
    if (response.has_chunk()) turn.Add(response.chunk());
    if (response.has_finished()) {
      turn.finished.push_back(response.finished());
      return true;
    }
    if (response.has_absorbed()) return true;
  }
  return false;
}

}  // namespace ovq::server::test
