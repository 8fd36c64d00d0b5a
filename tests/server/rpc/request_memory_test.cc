// The budget of host memory for calls: messages, answers, and events that wait for a client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "server/rpc/grpc_call.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

using Inference = v1::InferenceService::Stub;

constexpr size_t kBudget = size_t{1} << 20;

TestServerOptions WithRequestMemory() {
  TestServerOptions options;
  options.engine.request_memory = std::make_shared<ByteBudget>(kBudget);
  return options;
}

class RequestMemoryTest : public testing::Test {
 protected:
  // Calls release their memory a little after the client has its answer.
  std::unique_ptr<grpc::ClientReaderWriter<v1::ChatRequest, v1::ChatResponse>> OpenChat(
      grpc::ClientContext& context) {
    auto chat = server_.inference().Chat(&context);
    v1::ChatResponse opened;
    EXPECT_TRUE(chat->Write(OpenMessage()));
    EXPECT_TRUE(chat->Read(&opened));
    return chat;
  }
  void ExpectAllFree() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (server_.engine().Stats().request_bytes > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(server_.engine().Stats().request_bytes, 0u);
  }
  void ExpectRefused(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("request memory: "));
    EXPECT_EQ(GetErrorInfo(status).reason(), "request_memory");
    EXPECT_GT(GetErrorInfo(status).bytes_needed(), GetErrorInfo(status).bytes_free());
  }

  TestServer server_{WithRequestMemory()};
};

TEST_F(RequestMemoryTest, TextsCountAsTheirTokens) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text(std::string(kBudget / 8, 'x'));
  ExpectRefused(Call(server_.inference(), &Inference::Tokenize, request, response));
  EXPECT_THAT(server_.metrics().Text(), HasSubstr("reason=\"request_memory\"} 1\n"));
  request.set_text(std::string(kBudget / 32, 'x'));
  EXPECT_THAT(Call(server_.inference(), &Inference::Tokenize, request, response), Succeeds());
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, SmallFieldsCountAsWhatTheyComeTo) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("x");
  for (int i = 0; i < 20'000; ++i) request.mutable_stop()->add_stop_strings("");  // 40 KB
  v1::ApplyTemplateRequest messages;
  for (int i = 0; i < 10'000; ++i) messages.mutable_conversation()->add_messages();
  v1::ApplyTemplateResponse response;
  ExpectRefused(Call(server_.inference(), &Inference::ApplyTemplate, messages, response));
  grpc::ClientContext context;
  v1::GenerateResponse event;
  const auto reader = server_.inference().Generate(&context, request);
  while (reader->Read(&event)) {
  }
  ExpectRefused(reader->Finish());
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, MessagesThatWaitToBeParsedCountTheirBytes) {
  // A message that is refused before its parsed size counts.
  v1::ExportSessionRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      1000, std::string(kBudget, 'x'));
  grpc::ClientContext context;
  v1::SessionBytes part;
  const auto reader = server_.sessions().ExportSession(&context, request);
  EXPECT_FALSE(reader->Read(&part));
  ExpectRefused(reader->Finish());
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, PartsOfImportsThatWaitToBeParsedCountTheirBytes) {
  grpc::ClientContext context;
  v1::Session made;
  const auto writer = server_.sessions().ImportSession(&context, &made);
  v1::SessionBytes part;
  part.set_data("OVQ");
  EXPECT_TRUE(writer->Write(part));
  ExpectAllFree();  // between two parts
  part.GetReflection()->MutableUnknownFields(&part)->AddLengthDelimited(1000,
                                                                        std::string(kBudget, 'x'));
  EXPECT_TRUE(writer->Write(part));
  ExpectRefused(writer->Finish());
  ExpectAllFree();
}

// gRPC would keep it until the client has read the answer, and nobody would count it.
TEST_F(RequestMemoryTest, AMessageIsFreedWithItsMemory) {
  const ByteBudget& budget = *server_.engine().options().request_memory;
  const grpc::Slice bytes(std::string(1000, 'x'));
  grpc::ByteBuffer message(&bytes, 1);
  grpc::CallbackServerContext context;
  GrpcCall call(server_.services(), "Tokenize", &context);
  EXPECT_TRUE(call.HoldMessage(message).ok());
  EXPECT_EQ(budget.held(), 1000u);
  EXPECT_TRUE(call.End(absl::OkStatus(), /*answer_bytes=*/10).ok());
  EXPECT_EQ(budget.held(), 10u);
  EXPECT_FALSE(message.Valid());
}

TEST_F(RequestMemoryTest, AScoreCountsItsAnswerBeforeItIsMade) {
  v1::ScoreRequest request;
  for (int i = 0; i < 200; ++i) request.mutable_prompt()->mutable_token_ids()->add_ids(1);
  request.set_top_logprobs(200);
  v1::ScoreResponse response;
  ExpectRefused(Call(server_.inference(), &Inference::Score, request, response));
  request.set_top_logprobs(5);
  EXPECT_THAT(Call(server_.inference(), &Inference::Score, request, response), Succeeds());
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, StreamsHoldTheirsUntilTheyEnd) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("x");
  request.mutable_stop()->set_max_tokens(1'000'000'000);
  grpc::ClientContext context;
  const auto reader = server_.inference().Generate(&context, request);
  v1::GenerateResponse event;
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_GT(server_.engine().Stats().request_bytes, 0u);
  EXPECT_THAT(server_.metrics().Text(),
              HasSubstr("ovq_request_memory_bytes{model=\"fake\",kind=\"budget\"} 1048576"));
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, AChatsTurnHoldsItsOwn) {
  grpc::ClientContext context;
  const auto chat = server_.inference().Chat(&context);
  v1::ChatRequest message;
  message.mutable_open();
  EXPECT_TRUE(chat->Write(message));
  v1::ChatResponse event;
  EXPECT_TRUE(chat->Read(&event));
  message.mutable_turn()->mutable_prompt()->set_text("hello");
  message.mutable_turn()->mutable_stop()->set_max_tokens(3);
  EXPECT_TRUE(chat->Write(message));
  while (chat->Read(&event) && !event.has_finished()) {
  }
  message.mutable_turn()->mutable_prompt()->set_text(std::string(kBudget / 8, 'x'));
  EXPECT_TRUE(chat->Write(message));
  while (chat->Read(&event)) {
  }
  ExpectRefused(chat->Finish());
  ExpectAllFree();
}

TEST_F(RequestMemoryTest, AChatHoldsNothingButItsSettingsBetweenItsTurns) {
  const ByteBudget& budget = *server_.engine().options().request_memory;
  grpc::ClientContext context;
  const auto chat = OpenChat(context);
  for (const bool more : {false, true, false}) {
    Collected turn;
    EXPECT_TRUE(chat->Write(TurnMessage(std::string(1000, 'x'), more ? 0 : 3, more)));
    EXPECT_TRUE(ReadTurn(*chat, turn));
    EXPECT_LT(budget.held(), 1000u) << more;
  }
  EXPECT_TRUE(chat->WritesDone());
  EXPECT_TRUE(chat->Finish().ok());
  ExpectAllFree();
}

// They stay for the next turn, and a client may open many chats.
TEST_F(RequestMemoryTest, AnIdleChatHoldsItsSettings) {
  const ByteBudget& budget = *server_.engine().options().request_memory;
  grpc::ClientContext context;
  const auto chat = OpenChat(context);
  v1::ChatRequest message = TurnMessage("hello", 3);
  for (int i = 0; i < 16; ++i) {
    message.mutable_turn()->mutable_stop()->add_stop_strings(std::string(1000, 'x'));
  }
  for (int i = 0; i < 2; ++i) {
    Collected turn;
    EXPECT_TRUE(chat->Write(message));
    EXPECT_TRUE(ReadTurn(*chat, turn));
    EXPECT_GT(budget.held(), 16'000u);
    EXPECT_LT(budget.held(), 20'000u);
    message.mutable_turn()->clear_stop();  // those of the last turn
  }
  Collected turn;
  EXPECT_TRUE(chat->Write(TurnMessage("hello", 3)));
  EXPECT_TRUE(ReadTurn(*chat, turn));
  EXPECT_LT(budget.held(), 1000u);
  EXPECT_TRUE(chat->WritesDone());
  EXPECT_TRUE(chat->Finish().ok());
  ExpectAllFree();
}

}  // namespace
}  // namespace ovq::server::test
