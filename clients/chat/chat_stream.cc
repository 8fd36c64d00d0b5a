#include "clients/chat/chat_stream.h"

namespace ovq {

std::string RequestIdOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("x-request-id");
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

ChatStream::ChatStream(const Connection& connection, const std::string& session_key)
    : stub_(v1::InferenceService::NewStub(connection.channel)) {
  connection.Authorize(context_);
  AddSessionKey(session_key, context_);
  call_ = stub_->Chat(&context_);
}

ChatStream::~ChatStream() {
  if (finished_) return;
  Abort();
  Close();
}

bool ChatStream::Send(const v1::ChatRequest& request) {
  bool sent = false;
  {
    const std::lock_guard lock(write_mutex_);
    sent = call_->Write(request);
  }
  SendWaitingCancel();
  return sent;
}

bool ChatStream::Read(v1::ChatResponse* response) { return call_->Read(response); }

void ChatStream::CancelTurn() {
  cancel_waiting_ = true;
  SendWaitingCancel();
}

void ChatStream::SendWaitingCancel() {
  // Who holds the lock calls this once it has let go.
  const std::unique_lock lock(write_mutex_, std::try_to_lock);
  if (!lock || !cancel_waiting_.exchange(false)) return;
  v1::ChatRequest request;
  request.mutable_cancel();
  call_->Write(request);
}

void ChatStream::Abort() { context_.TryCancel(); }

grpc::Status ChatStream::Close() {
  {
    const std::lock_guard lock(write_mutex_);
    call_->WritesDone();
  }
  v1::ChatResponse ignored;
  while (call_->Read(&ignored)) {
  }
  finished_ = true;
  return call_->Finish();
}

}  // namespace ovq
