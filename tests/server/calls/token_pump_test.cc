// The one way of an answer from the engine's stream to a client.
#include "server/calls/token_pump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ovq::server::test {
namespace {

using testing::ElementsAre;

// A client that notes what it gets.
struct Notes final : TokenSink {
  void OnEvent(const engine::StreamEvent& event) override {
    log.push_back(event.chunk->text);
    if (event.chunk->text == refused) pump.Refuse(absl::ResourceExhaustedError("no room"));
  }
  void OnStreamEnd(const absl::Status& status) override {
    log.push_back(status.ok() ? "end" : std::string(status.message()));
  }
  void Wake() override { ++wakes; }

  void Push(const std::string& text) {
    engine::StreamEvent event;
    event.chunk.emplace().text = text;
    event.chunk->token_ids = {1};
    pump.stream()->Push(std::move(event));
  }
  void AdvanceToEnd() {
    while (pump.Advance()) {
    }
  }

  std::vector<std::string> log;
  std::string refused;
  int wakes = 0;
  WorkSummary work;
  TokenPump pump{*this, work};
};

TEST(TokenPump, GivesEventsInOrderAndTheEndOnce) {
  const auto sink = std::make_shared<Notes>();
  sink->Push("a");
  EXPECT_FALSE(sink->pump.Advance()) << "it is not known yet whether the request was taken";
  sink->pump.Submitted(absl::OkStatus(), sink);
  EXPECT_EQ(sink->wakes, 1) << "something was waiting";
  sink->Push("b");
  EXPECT_EQ(sink->wakes, 2);
  EXPECT_TRUE(sink->pump.Advance());
  EXPECT_THAT(sink->log, ElementsAre("a")) << "one event at a time";
  sink->AdvanceToEnd();
  EXPECT_THAT(sink->log, ElementsAre("a", "b"));
  sink->pump.stream()->Close(absl::OkStatus());
  EXPECT_EQ(sink->wakes, 3);
  sink->AdvanceToEnd();
  EXPECT_THAT(sink->log, ElementsAre("a", "b", "end"));
  EXPECT_FALSE(sink->pump.Advance());
}

TEST(TokenPump, ARequestThatIsNotTakenEndsAtOnce) {
  const auto sink = std::make_shared<Notes>();
  sink->pump.Submitted(absl::UnavailableError("full"), sink);
  EXPECT_EQ(sink->wakes, 1);
  sink->AdvanceToEnd();
  EXPECT_THAT(sink->log, ElementsAre("full"));
}

TEST(TokenPump, ASinkThatDoesNotAdvanceFillsItsOwnStream) {
  const auto sink = std::make_shared<Notes>();
  sink->pump.Submitted(absl::OkStatus(), sink);
  for (size_t i = 0; i < engine::TokenStream::kCapacity; ++i) {
    EXPECT_FALSE(sink->pump.stream()->full());
    sink->Push("x");
  }
  EXPECT_TRUE(sink->pump.stream()->full()) << "the engine blocks the request";
  EXPECT_TRUE(sink->pump.Advance());
  EXPECT_FALSE(sink->pump.stream()->full());
}

TEST(TokenPump, ARefusedAnswerIsCancelledAndEndsWithTheReason) {
  const auto sink = std::make_shared<Notes>();
  sink->refused = "b";
  sink->pump.Submitted(absl::OkStatus(), sink);
  for (const char* text : {"a", "b", "c"}) sink->Push(text);
  sink->AdvanceToEnd();
  EXPECT_TRUE(sink->pump.stream()->cancel_signal().cancelled());
  sink->pump.stream()->Close(absl::CancelledError("cancelled"));
  sink->AdvanceToEnd();
  EXPECT_THAT(sink->log, ElementsAre("a", "b", "no room"));
}

TEST(TokenPump, ASinkThatIsGoneIsNotWoken) {
  auto sink = std::make_shared<Notes>();
  const std::shared_ptr<engine::TokenStream> stream = sink->pump.stream();
  sink->pump.Submitted(absl::OkStatus(), sink);
  sink.reset();
  stream->Close(absl::OkStatus());
}

}  // namespace
}  // namespace ovq::server::test
