// Questions over gRPC that Ctrl-C takes back.
#include "clients/chat/conversation.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq::clients {
namespace {

// Answers each turn until it is cancelled. A cancel that comes before its turn has no effect.
class EndlessAnswers final : public v1::InferenceService::Service {
 public:
  grpc::Status Chat(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::ChatResponse, v1::ChatRequest>* stream) override {
    v1::ChatRequest request;
    stream->Read(&request);
    v1::ChatResponse response;
    response.mutable_opened();
    stream->Write(response);
    while (stream->Read(&request)) {
      if (!request.has_turn()) continue;
      while (stream->Read(&request) && !request.has_cancel()) {
      }
      response.mutable_finished()->set_reason(v1::FINISH_REASON_CANCELLED);
      stream->Write(response);
    }
    return grpc::Status::OK;
  }
};

TEST(Conversation, AnInterruptThatIsSentBeforeItsQuestionEndsTheAnswer) {
  EndlessAnswers service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ConnectOptions connect;
  connect.server = absl::StrCat("127.0.0.1:", port);
  const auto connection = Connect(connect);
  ASSERT_TRUE(connection.ok()) << connection.status();
  absl::Notification done;
  std::thread watchdog([&] {
    if (!done.WaitForNotificationWithTimeout(absl::Seconds(20))) {
      server->Shutdown(std::chrono::system_clock::now());
    }
  });
  ChatOptions options;
  options.messages = true;
  const Screen screen;
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    Conversation conversation(*connection, options, screen);
    EXPECT_TRUE(conversation.Open());
    // While so long a message is made.
    std::thread interrupt([&] {
      while (!conversation.OnInterrupt()) {
      }
    });
    EXPECT_TRUE(conversation.Ask(std::string(size_t{16} << 20, 'x'))) << "the answer went on";
    interrupt.join();
    EXPECT_TRUE(conversation.Close().ok());
  }
  done.Notify();
  watchdog.join();
}

}  // namespace
}  // namespace ovq::clients
