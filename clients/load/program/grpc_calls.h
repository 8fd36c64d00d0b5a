// Makes the runner's calls over gRPC's callback API: no thread blocks on a stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/channel/channel.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/runner.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq::load {

// Thread-safe. All calls must have ended before it is destroyed.
class GrpcCalls {
 public:
  // Reads the credential files. InvalidArgument names the flag. `options` must outlive the object.
  static absl::StatusOr<std::unique_ptr<GrpcCalls>> Make(const Options& options);

  absl::StatusOr<ModelFacts> GetModel();                                    // blocks
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text);  // blocks
  Calls calls();

 private:
  class GenerateCall;
  struct Server {  // stubs over one connection
    clients::Connection connection;
    std::unique_ptr<v1::InferenceService::Stub> inference;
    std::unique_ptr<v1::SessionService::Stub> sessions;
  };

  explicit GrpcCalls(const Options& options) : options_(options) {}
  const Server& Next() { return servers_[next_server_++ % servers_.size()]; }
  void Prepare(grpc::ClientContext& context, absl::Duration timeout,
               const std::string& session_key = "") const;
  using Sessions = v1::SessionService::StubInterface::async_interface;
  // Calls a method for sessions. `done` gets what `get` makes of the answer, or the error.
  template <class Response, class Request, class Done, class Get>
  void CallSessions(void (Sessions::*method)(grpc::ClientContext*, const Request*, Response*,
                                             std::function<void(grpc::Status)>),
                    const Request& request, absl::Duration timeout, const std::string& session_key,
                    Done done, Get get);
  // Enter and Leave add and remove a call from those that cancel_all cancels.
  void Enter(grpc::ClientContext* context);
  void Leave(grpc::ClientContext* context);

  const Options& options_;
  std::vector<Server> servers_;
  std::atomic<size_t> next_server_ = 0;
  std::atomic<int64_t> tokens_received_ = 0;
  std::mutex mutex_;  // guards the next member
  std::unordered_set<grpc::ClientContext*> live_;
};

}  // namespace ovq::load
