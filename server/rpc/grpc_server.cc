#include "server/rpc/grpc_server.h"

#include <google/protobuf/message.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/common/limits.h"

namespace ovq::server {
namespace {

constexpr int kMinPingIntervalMs = 10'000;
// A peer that vanished silently is noticed within 80 s, and its state is freed.
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Limit on a call's metadata: room for the longest token, and no more.
constexpr int kMaxMetadataBytes = 16 << 10;
// Threads of the library for reflection, the only service that takes a thread for each open stream.
// Further streams get RESOURCE_EXHAUSTED.
constexpr int kReflectionThreads = 16;
constexpr absl::Duration kLastAnswers =
    absl::Milliseconds(200);  // for the last answers, at the end

int ToMs(absl::Duration time) {
  return static_cast<int>(
      std::min<int64_t>(absl::ToInt64Milliseconds(time), std::numeric_limits<int>::max()));
}

// The library's own services, health and reflection, ask for no token, and nobody counts their
// memory. They keep a request until the call ends or the next request comes, which may be never.
// A name of a service in a health check has at most 200 bytes there; reflection asks for names,
// too.
constexpr size_t kMaxLibraryRequestBytes = 1024;

// Frees larger requests: the library then refuses them as requests that are empty.
class LibraryRequestLimit final : public grpc::experimental::Interceptor {
 public:
  // free_larger: empties a request of the service's type, if it is too large.
  explicit LibraryRequestLimit(void (*free_larger)(void* request)) : free_larger_(free_larger) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE)) {
      if (void* const request = methods->GetRecvMessage()) free_larger_(request);
    }
    methods->Proceed();
  }

 private:
  void (*const free_larger_)(void* request);
};

void FreeLargerBytes(void* request) {
  auto* const bytes = static_cast<grpc::ByteBuffer*>(request);
  if (bytes->Length() > kMaxLibraryRequestBytes) bytes->Clear();
}

void FreeLargerMessage(void* request) {
  auto* const message = static_cast<google::protobuf::Message*>(request);
  if (message->ByteSizeLong() <= kMaxLibraryRequestBytes) return;
  const std::unique_ptr<google::protobuf::Message> empty(message->New());
  message->GetReflection()->Swap(message, empty.get());  // Clear would keep the memory
}

class LibraryRequestLimits final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method();
    if (method.starts_with("/grpc.health.")) return new LibraryRequestLimit(&FreeLargerBytes);
    if (method.starts_with("/grpc.reflection.")) return new LibraryRequestLimit(&FreeLargerMessage);
    return nullptr;
  }
};

void LimitLibraryRequests(grpc::ServerBuilder& builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> limits;
  limits.push_back(std::make_unique<LibraryRequestLimits>());
  builder.experimental().SetInterceptorCreators(std::move(limits));
}

void Configure(grpc::ServerBuilder& builder, const ListenOptions& options) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(engine::kMaxAnswerBytes));
  // The library inflates a whole message before it checks the size: 64 MiB could become 64 GiB of
  // zeros.
  for (grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.SetResourceQuota(grpc::ResourceQuota("server").SetMaxThreads(kReflectionThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, ToMs(options.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, ToMs(options.max_connection_idle));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The library's 300 s would end the connection of a client that pings during a long prefill.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  // With it two servers on one port would silently share its calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  LimitLibraryRequests(builder);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const ListenOptions& options,
                                                              std::vector<RpcService> services) {
  // Never released: the library's shutdown after its last user may wait 10 s for its sockets.
  static std::once_flag library_held;
  std::call_once(library_held, &grpc_init);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<GrpcServer> result(new GrpcServer(std::move(services)));
  grpc::ServerBuilder builder;
  Configure(builder, options);
  result->credentials_ =
      options.tls == nullptr ? grpc::InsecureServerCredentials() : MakeTlsCredentials(*options.tls);
  builder.AddListeningPort(options.address, result->credentials_, &result->port_);
  for (const RpcService& service : result->services_)
    builder.RegisterService(service.service.get());
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(options.flag, ": cannot listen on ", options.address,
                                               " (port in use, or no address of this machine)"));
  }
  result->SetServing(true);
  return result;
}

GrpcServer::~GrpcServer() {
  if (server_ != nullptr) Shutdown(absl::Now() + kLastAnswers);
}

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  for (const RpcService& service : services_) health->SetServingStatus(service.name, serving);
}

void GrpcServer::Shutdown(absl::Time deadline) {
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace ovq::server
