// One Chat call: a bidirectional stream that is one conversation.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "clients/channel/channel.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq {

// What names a call that has ended in the server's log; empty if no server answered.
std::string RequestIdOf(const grpc::ClientContext& context);

// Read and Close belong to one thread; Send, CancelTurn and Abort may come from any.
class ChatStream {
 public:
  // The key of the session that it opens; may be empty.
  ChatStream(const Connection& connection, const std::string& session_key);
  ~ChatStream();

  // False: the call has ended; Close tells why.
  bool Send(const v1::ChatRequest& request);
  bool Read(v1::ChatResponse* response);
  // Never waits: while a Send is stuck, the cancel follows it.
  void CancelTurn();
  void Abort();  // ends the call at once

  // Says that no turn follows, reads what is left and returns how the call ended. Call once.
  grpc::Status Close();
  // After Close: what names the call in the server's log; empty if no server answered.
  std::string RequestId() const { return RequestIdOf(context_); }

 private:
  void SendWaitingCancel();
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  grpc::ClientContext context_;
  std::mutex write_mutex_;  // gRPC allows one write at a time beside one read
  std::atomic<bool> cancel_waiting_ = false;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ChatRequest, v1::ChatResponse>> call_;
  bool finished_ = false;
};

}  // namespace ovq
