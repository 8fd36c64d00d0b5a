// Base class of gRPC calls that stream their answer.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/calls/service_context.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/grpc_codec.h"

namespace ovq::server {

// Writes messages one at a time: the next one is made once gRPC has taken the one before, so a slow
// client holds up its own call only. Make it with std::make_shared.
template <class Reactor, class Response>
class StreamCall : public Reactor,
                   public std::enable_shared_from_this<StreamCall<Reactor, Response>> {
 public:
  StreamCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context)
      : services_(services),
        call_(services, label, context),
        record_(call_.record()),
        strand_(services.writers, record_.client()) {}

  void OnWriteDone(bool ok) override {
    strand_.Dispatch([this, ok] {
      writing_ = false;
      client_gone_ |= !ok;
      Pump();
    });
  }
  void OnCancel() override { record_.cancel()->Cancel(); }
  void OnDone() override { self_.reset(); }

 protected:
  // Adds the next messages to out_, or ends the call. Called on the strand, while out_ is empty and
  // no write is running. False: nothing to do until the next Pump.
  virtual bool Advance() = 0;

  // Says who calls, and charges the tenant. Before the strand has any work.
  absl::Status Admit() {
    RETURN_IF_ERROR(record_.Admit());
    strand_.SetClient(record_.client());
    return absl::OkStatus();
  }
  void KeepUntilDone() { self_ = this->shared_from_this(); }
  // Writes the next message, or advances, until a write is running. On the strand.
  void Pump() {
    while (!writing_ && !finished_) {
      if (client_gone_) out_.clear();
      if (!out_.empty()) {
        WriteNext();
      } else if (!Advance()) {
        return;
      }
    }
  }
  void EndCall(const absl::Status& status) {
    finished_ = true;
    this->Finish(call_.End(status));
  }
  template <class Work>
  void OnStrand(Work work) {
    strand_.Post(this->shared_from_this(), std::move(work));
  }
  template <class Work>
  void OnBlockingThread(Work work) {
    services_.blocking.Run(record_.client(),
                           [self = this->shared_from_this(), work = std::move(work)] { work(); });
  }
  // For work(status) that a client's message of so many bytes begins: CallRecord::Begin.
  template <class Work>
  void BeginOnBlockingThread(size_t message_bytes, Work work) {
    record_.Begin(services_.blocking, message_bytes,
                  [self = this->shared_from_this(),
                   work = std::move(work)](const absl::Status& status) { work(status); });
  }

  ServiceContext& services_;
  GrpcCall call_;
  CallRecord& record_;
  Strand strand_;
  // Used on the strand only.
  std::deque<Response> out_;
  bool client_gone_ = false;  // nothing is written any more

 private:
  void WriteNext() {
    writing_ = true;
    bytes_ = SerializeMessage(out_.front());
    out_.pop_front();
    this->StartWrite(&bytes_);
  }

  std::shared_ptr<StreamCall> self_;  // until OnDone
  grpc::ByteBuffer bytes_;            // the message being written
  bool writing_ = false;
  bool finished_ = false;
};

// Starts a call that deletes itself at its end.
template <class Call, class... Args>
Call* StartCall(ServiceContext& services, const char* label, grpc::CallbackServerContext* context,
                Args... args) {
  auto call = std::make_shared<Call>(services, label, context);
  call->Start(args...);
  return call.get();
}

using WriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;
using BidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
WriteReactor* StartGenerate(ServiceContext& services, const char* label,
                            grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);
BidiReactor* StartChat(ServiceContext& services, const char* label,
                       grpc::CallbackServerContext* context);

// Memory for all exports, or all imports, together, outside the budget of session states.
struct TransferBudget {
  TransferBudget(const char* what, size_t most) : what(what), most(most) {}
  const char* const what;        // "exports"
  const size_t most;             // bytes
  std::atomic<size_t> held = 0;  // at most `most`
};

WriteReactor* StartExport(std::shared_ptr<TransferBudget> budget, ServiceContext& services,
                          const char* label, grpc::CallbackServerContext* context,
                          const grpc::ByteBuffer* request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(std::shared_ptr<TransferBudget> budget,
                                                       ServiceContext& services, const char* label,
                                                       grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response);

}  // namespace ovq::server
