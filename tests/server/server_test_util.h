// Runs a whole gRPC server with a fake model in the test's process, with helpers for its clients.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/rpc/grpc_server.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/telemetry/log_file.h"

namespace ovq::server::test {

struct TestServerOptions {
  engine::EngineOptions engine = {};
  engine::test::FakeModelOptions model = {};
  size_t max_message_bytes = size_t{64} << 20;
  std::function<void(engine::test::FakeModel&)> setup = {};
  std::optional<TenantList> tenants = {};  // if set, calls need a tenant's token
  LogOptions log = {.format = LogFormat::kJson};
  LogRequests log_requests = LogRequests::kAll;
};

// A server on a free port of 127.0.0.1; it ends with the object.
class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  v1::InferenceService::Stub& inference() { return *inference_; }
  v1::SessionService::Stub& sessions() { return *sessions_; }
  engine::test::FakeModel& model() { return model_; }
  engine::Engine& engine() { return engine_->engine(); }
  Metrics& metrics() { return metrics_; }
  ServiceContext& services() { return *services_; }
  GrpcServer& server() { return *server_; }
  TenantRegistry& tenants() { return *tenants_; }
  // Returns the log up to and including the last line written.
  std::string LogText();
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  std::shared_ptr<grpc::Channel> NewChannel() const;  // a new connection
  // Waits until `condition` holds for the engine's statistics and returns them; fails the test
  // after 30 s.
  engine::EngineStats WaitForStats(
      const std::function<bool(const engine::EngineStats&)>& condition);
  std::string NewSession(const v1::CreateSessionRequest& request = {});

 private:
  engine::test::FakeModel model_;
  LogFile log_file_;
  Log log_;
  Metrics metrics_;
  std::unique_ptr<engine::EngineThread> engine_;
  std::unique_ptr<TenantRegistry> tenants_;
  std::unique_ptr<ServiceContext> services_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
};

// All messages of a Generate call or of one turn of a Chat call.
struct Collected {
  v1::Started started;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
  std::string text;
  int chunks = 0;
  std::vector<v1::Finished> finished;
  grpc::Status status;
  void Add(const v1::TokenChunk& chunk);
};

Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request);
Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request,
                   grpc::ClientContext& context);

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens);
v1::GenerateRequest TokenRequest(const std::vector<uint32_t>& ids, uint32_t max_tokens);

// Returns the ErrorInfo in the trailing metadata of a failed call; fails the test if there is none.
v1::ErrorInfo GetErrorInfo(const grpc::Status& status);

// Sends one message, as bytes, to any method of any service and stores the response in `answer`.
grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& message, std::string& answer);

using ChatStream = grpc::ClientReaderWriter<v1::ChatRequest, v1::ChatResponse>;
v1::ChatRequest OpenMessage();
v1::ChatRequest TurnMessage(const std::string& text, uint32_t max_tokens, bool more = false);
v1::ChatRequest CancelMessage();
// Reads up to the turn's Finished or PartAbsorbed. Returns false if the stream ended before it.
bool ReadTurn(ChatStream& stream, Collected& turn);

inline constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
// Matches a status with this code whose message contains the text.
MATCHER_P2(Fails, code, text, "") {
  *result_listener << "code " << arg.error_code() << ": " << arg.error_message();
  return arg.error_code() == code && arg.error_message().find(text) != std::string::npos;
}
MATCHER(Succeeds, "") {
  *result_listener << "code " << arg.error_code() << ": " << arg.error_message();
  return arg.ok();
}

// Makes a unary call, with metadata `ovq-tenant` if a tenant is given.
template <class Response, class Stub, class SampleRequest>
grpc::Status Call(
    Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const SampleRequest&, Response*),
    const SampleRequest& request, Response& response, const std::string& tenant = "") {
  grpc::ClientContext context;
  if (!tenant.empty()) context.AddMetadata("ovq-tenant", tenant);
  return (stub.*method)(&context, request, &response);
}

}  // namespace ovq::server::test
