#include "server/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "server/convert.h"

namespace ovq {
namespace {

constexpr int kMinPingIntervalMs = 10'000;
// A peer that vanished without a word is noticed within 80 s and its state freed.
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;

void Configure(grpc::ServerBuilder& builder, size_t max_message_bytes) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxAnswerBytes));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The library's 300 s would end the connection of a client that pings during a long prefill.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  // Else two servers on one port would share its calls in silence.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& address,
                                                              size_t max_message_bytes,
                                                              ServiceContext& services) {
  // Held for good: the library's own end, when its last user goes, may wait 10 s for its sockets.
  static std::once_flag library_held;
  std::call_once(library_held, &grpc_init);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<GrpcServer> result(new GrpcServer(services));
  grpc::ServerBuilder builder;
  Configure(builder, max_message_bytes);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &result->port_);
  builder.RegisterService(&result->inference_);
  builder.RegisterService(&result->sessions_);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", address,
                                               " (port in use, or no address of this machine)"));
  }
  result->SetServing(true);
  return result;
}

GrpcServer::~GrpcServer() {
  if (server_ != nullptr) Shutdown(absl::Now());
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return server_->InProcessChannel(grpc::ChannelArguments());
}

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  for (const char* service :
       {"", v1::InferenceService::service_full_name(), v1::SessionService::service_full_name()}) {
    health->SetServingStatus(service, serving);
  }
}

void GrpcServer::Shutdown(absl::Time deadline) {
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace ovq
