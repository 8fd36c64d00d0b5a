// Request ids, trace context and log lines of calls.
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kParent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr uint32_t kEndless = 4'000'000;

std::vector<Json> Lines(TestServer& server) {
  std::vector<Json> lines;
  for (absl::string_view line : absl::StrSplit(server.LogText(), '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line.begin(), line.end()));
  }
  return lines;
}

// The only log line so far.
Json OneLine(TestServer& server) {
  const std::vector<Json> lines = Lines(server);
  EXPECT_EQ(lines.size(), 1u) << server.LogText();
  return lines.empty() ? Json() : lines[0];
}

std::string Trailing(const grpc::ClientContext& context, const char* key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  EXPECT_EQ(metadata.count(key), 1u) << key;
  const auto found = metadata.find(key);
  if (found == metadata.end()) return "";
  return {found->second.data(), found->second.size()};
}

// Checks that a call's trailing metadata and its log line agree.
void ExpectIds(const grpc::ClientContext& context, const Json& line) {
  EXPECT_EQ(line["request_id"], Trailing(context, "x-request-id"));
  const std::string trace = line["trace_id"], span = line["span_id"];
  EXPECT_EQ(Trailing(context, "traceparent"),
            absl::StrCat("00-", trace, "-", span, line["sampled"] == true ? "-01" : "-00"));
}

void AddParent(grpc::ClientContext& context) {
  context.AddMetadata("x-request-id", "order-66.b");
  context.AddMetadata("traceparent", kParent);
  context.AddMetadata("tracestate", "rojo=1,congo=2");
}

void ExpectParent(const grpc::ClientContext& context, const Json& line) {
  ExpectIds(context, line);
  EXPECT_EQ(line["request_id"], "order-66.b");
  EXPECT_EQ(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(line["parent_id"], "00f067aa0ba902b7");
  EXPECT_NE(line["span_id"], "00f067aa0ba902b7");
  EXPECT_EQ(line["sampled"], true);
  EXPECT_EQ(Trailing(context, "tracestate"), "rojo=1,congo=2");
}

v1::ScoreRequest Score(const std::string& text) {
  v1::ScoreRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

TEST(CallLines, AUnaryCall) {
  TestServer server;
  grpc::ClientContext context;
  AddParent(context);
  context.AddMetadata("ovq-tenant", "alice");
  v1::ScoreResponse response;
  ASSERT_THAT(server.inference().Score(&context, Score("hello"), &response), Succeeds());
  const Json line = OneLine(server);
  ExpectParent(context, line);
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["message"], "call ended");
  EXPECT_EQ(line["method"], "Score");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["tenant"], "alice");
  EXPECT_EQ(line["prompt_tokens"], 5);
  EXPECT_THAT(line["peer"].get<std::string>(), HasSubstr("127.0.0.1"));
  EXPECT_GT(line["duration_ms"], 0);
  EXPECT_FALSE(line.contains("error"));
}

TEST(CallLines, AStream) {
  TestServer server;
  grpc::ClientContext context;
  AddParent(context);
  ASSERT_THAT(Generate(server.inference(), TextRequest("hello", 7), context).status, Succeeds());
  const Json line = OneLine(server);
  ExpectParent(context, line);
  EXPECT_EQ(line["method"], "Generate");
  EXPECT_EQ(line["prompt_tokens"], 5);
  EXPECT_EQ(line["generated_tokens"], 7);
  EXPECT_EQ(line["finish_reason"], "length");
  EXPECT_GE(line["queue_ms"], 0);
  EXPECT_GT(line["ttft_ms"], line["queue_ms"]);
  EXPECT_GT(line["duration_ms"], line["ttft_ms"]);
}

TEST(CallLines, WithoutMetadataAndWithInvalidOneTheIdsAreNew) {
  TestServer server;
  std::vector<std::string> seen;
  for (const bool invalid : {false, true}) {
    grpc::ClientContext context;
    if (invalid) {
      context.AddMetadata("x-request-id", "my own id");
      context.AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736");
      context.AddMetadata("tracestate", "rojo=1");
    }
    v1::ScoreResponse response;
    ASSERT_THAT(server.inference().Score(&context, Score("hello"), &response), Succeeds());
    const Json line = Lines(server).back();
    ExpectIds(context, line);
    EXPECT_THAT(Trailing(context, "x-request-id"), testing::SizeIs(32));
    EXPECT_EQ(context.GetServerTrailingMetadata().count("tracestate"), 0u);
    EXPECT_FALSE(line.contains("parent_id"));
    EXPECT_EQ(line["sampled"], false);
    for (const char* key : {"request_id", "trace_id", "span_id"}) seen.push_back(line[key]);
  }
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 6u);
}

TEST(CallLines, SeveralValuesAreNone) {
  TestServer server;
  grpc::ClientContext context;
  for (const char* id : {"a", "b"}) context.AddMetadata("x-request-id", id);
  for (int i = 0; i < 2; ++i) context.AddMetadata("traceparent", kParent);
  v1::ScoreResponse response;
  ASSERT_THAT(server.inference().Score(&context, Score("hello"), &response), Succeeds());
  const Json line = OneLine(server);
  ExpectIds(context, line);
  EXPECT_THAT(line["request_id"].get<std::string>(), testing::SizeIs(32));
  EXPECT_FALSE(line.contains("parent_id"));
}

TEST(CallLines, TraceStateInSeveralHeadersIsOneList) {
  TestServer server;
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kParent);
  for (const char* part : {"rojo=1", "congo=2"}) context.AddMetadata("tracestate", part);
  v1::ScoreResponse response;
  ASSERT_THAT(server.inference().Score(&context, Score("hello"), &response), Succeeds());
  EXPECT_EQ(Trailing(context, "tracestate"), "rojo=1,congo=2");
}

TEST(CallLines, ErrorsSayWhatWasExpectedAndNotWhatCame) {
  TestServer server;
  {
    grpc::ClientContext context;
    AddParent(context);
    const Collected result = Generate(server.inference(), TokenRequest({1, 987654}, 5), context);
    EXPECT_THAT(result.status, Fails(grpc::StatusCode::INVALID_ARGUMENT, "987654"));
    const Json line = OneLine(server);
    ExpectParent(context, line);
    EXPECT_EQ(line["level"], "info");
    EXPECT_EQ(line["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(line["error"], "prompt.token_ids.ids[1]: expected a token id below 258");
  }
  {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id("secret words");
    v1::Session session;
    EXPECT_THAT(server.sessions().GetSession(&context, request, &session),
                Fails(grpc::StatusCode::NOT_FOUND, "not found"));
    const Json line = Lines(server).back();
    ExpectIds(context, line);
    EXPECT_EQ(line["code"], "NOT_FOUND");
    EXPECT_EQ(line["error"], "session_id: not found, and no session's id");
    EXPECT_FALSE(line.contains("session_id"));
  }
  {
    grpc::ClientContext context;
    const auto stream = server.sessions().ExportSession(&context, {});
    EXPECT_THAT(stream->Finish(), Fails(grpc::StatusCode::INVALID_ARGUMENT, "session_id"));
    ExpectIds(context, Lines(server).back());
  }
  EXPECT_THAT(server.LogText(), Not(testing::AnyOf(HasSubstr("987654"), HasSubstr("secret"))));
}

TEST(CallLines, SessionsAreNamed) {
  TestServer server;
  const std::string id = server.NewSession();
  EXPECT_EQ(Lines(server).back()["session_id"], id);
  v1::GenerateRequest request = TextRequest("hello", 3);
  request.set_session_id(id);
  ASSERT_THAT(Generate(server.inference(), request).status, Succeeds());
  EXPECT_EQ(Lines(server).back()["session_id"], id);
  grpc::ClientContext context;
  v1::DeleteSessionRequest deletion;
  deletion.set_session_id(id);
  v1::DeleteSessionResponse response;
  ASSERT_THAT(server.sessions().DeleteSession(&context, deletion, &response), Succeeds());
  EXPECT_EQ(Lines(server).back()["method"], "DeleteSession");
  EXPECT_EQ(Lines(server).back()["session_id"], id);
}

// The server learns the client's deadline late by the time on the way. On a busy machine the client
// may give up long before the server's idea of the deadline, which makes another log line: then the
// call is repeated.
TEST(CallLines, ADeadlineIsAWarning) {
  TestServer server;
  Json line;
  for (int calls = 1; calls <= 10 && line["code"] != "DEADLINE_EXCEEDED"; ++calls) {
    server.model().gate().CloseAt(server.model().gate().steps() + 1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
    const Collected result = Generate(server.inference(), TextRequest("hello", 5), context);
    EXPECT_THAT(result.status, Fails(grpc::StatusCode::DEADLINE_EXCEEDED, ""));
    server.model().gate().Open();
    // The client returns before the server ends the call, or even begins it.
    const absl::Time patience = absl::Now() + absl::Seconds(5);
    while (Lines(server).size() < static_cast<size_t>(calls) && absl::Now() < patience) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const std::vector<Json> lines = Lines(server);
    if (!lines.empty()) line = lines.back();
  }
  EXPECT_EQ(line["code"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(line["level"], "warning");
}

class ChatLines : public testing::Test {
 protected:
  void Open() {
    AddParent(context_);
    stream_ = server_.inference().Chat(&context_);
    ASSERT_TRUE(stream_->Write(OpenMessage()));
    v1::ChatResponse response;
    ASSERT_TRUE(stream_->Read(&response));
    session_ = response.opened().session().session_id();
  }
  void Turn(const std::string& text, uint32_t max_tokens, bool more = false) {
    Collected turn;
    ASSERT_TRUE(stream_->Write(TurnMessage(text, max_tokens, more)));
    ASSERT_TRUE(ReadTurn(*stream_, turn));
  }

  TestServer server_;
  grpc::ClientContext context_;
  std::unique_ptr<ChatStream> stream_;
  std::string session_;
};

TEST_F(ChatLines, OneForEachTurnAndOneForTheStream) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_NO_FATAL_FAILURE(Turn("ab", 4));
  ASSERT_NO_FATAL_FAILURE(Turn("part", 0, /*more=*/true));
  ASSERT_NO_FATAL_FAILURE(Turn("rest", 3));
  stream_->WritesDone();
  ASSERT_THAT(stream_->Finish(), Succeeds());
  const std::vector<Json> lines = Lines(server_);
  ASSERT_EQ(lines.size(), 3u) << server_.LogText();
  const std::vector<int> prompts = {2, 8, 10}, generated = {4, 3, 7};
  for (size_t i = 0; i < 3; ++i) {
    ExpectParent(context_, lines[i]);
    EXPECT_EQ(lines[i]["method"], "Chat");
    EXPECT_EQ(lines[i]["code"], "OK");
    EXPECT_EQ(lines[i]["session_id"], session_);
    EXPECT_EQ(lines[i]["message"], i < 2 ? "turn ended" : "call ended");
    EXPECT_EQ(lines[i]["prompt_tokens"], prompts[i]);
    EXPECT_EQ(lines[i]["generated_tokens"], generated[i]);
  }
  EXPECT_EQ(lines[0]["turn"], 1);
  EXPECT_EQ(lines[1]["turn"], 2);
  EXPECT_EQ(lines[1]["finish_reason"], "length");
  EXPECT_EQ(lines[2]["turns"], 2);
}

TEST_F(ChatLines, ACancelledTurnAndOneThatFails) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_TRUE(stream_->Write(TurnMessage("ab", kEndless)));
  v1::ChatResponse response;
  while (!response.has_chunk()) ASSERT_TRUE(stream_->Read(&response));
  ASSERT_TRUE(stream_->Write(CancelMessage()));
  Collected turn;
  ASSERT_TRUE(ReadTurn(*stream_, turn));
  // A turn that is refused ends the stream.
  v1::ChatRequest bad = TurnMessage("secret words", 1);
  bad.mutable_turn()->mutable_sampling()->set_temperature(-1);
  ASSERT_TRUE(stream_->Write(bad));
  EXPECT_FALSE(stream_->Read(&response));
  EXPECT_THAT(stream_->Finish(), Fails(grpc::StatusCode::INVALID_ARGUMENT, "temperature"));
  const std::vector<Json> lines = Lines(server_);
  ASSERT_EQ(lines.size(), 3u) << server_.LogText();
  EXPECT_EQ(lines[0]["code"], "OK");
  EXPECT_EQ(lines[0]["finish_reason"], "cancelled");
  EXPECT_GE(lines[0]["generated_tokens"], 1);
  for (size_t i : {1, 2}) {
    EXPECT_EQ(lines[i]["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(lines[i]["error"], "turn.sampling.temperature: expected [0, 100]");
    ExpectParent(context_, lines[i]);
  }
  EXPECT_EQ(lines[1]["turn"], 2);
  EXPECT_THAT(server_.LogText(), Not(HasSubstr("secret")));
}

TEST_F(ChatLines, ATurnThatTheClientLeaves) {
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_TRUE(stream_->Write(TurnMessage("ab", kEndless)));
  v1::ChatResponse response;
  while (!response.has_chunk()) ASSERT_TRUE(stream_->Read(&response));
  context_.TryCancel();
  while (stream_->Read(&response)) {
  }
  EXPECT_THAT(stream_->Finish(), Fails(grpc::StatusCode::CANCELLED, ""));
  server_.WaitForStats([&](const engine::EngineStats&) { return Lines(server_).size() == 2; });
  for (const Json& line : Lines(server_)) {
    EXPECT_EQ(line["code"], "CANCELLED");
    EXPECT_EQ(line["level"], "info");
    EXPECT_EQ(line["request_id"], "order-66.b");
  }
}

TEST(CallLines, WhichCallsHaveOne) {
  for (const LogRequests which : {LogRequests::kNone, LogRequests::kErrors, LogRequests::kAll}) {
    TestServer server({.log_requests = which});
    ASSERT_THAT(Generate(server.inference(), TextRequest("hello", 1)).status, Succeeds());
    grpc::ClientContext context;
    EXPECT_FALSE(Generate(server.inference(), TextRequest("", 1), context).status.ok());
    Trailing(context, "x-request-id");
    EXPECT_EQ(Lines(server).size(), static_cast<size_t>(which));
  }
}

TEST(CallLines, BeginningsAreForDebugging) {
  TestServer server({.log = {.format = LogFormat::kJson, .level = LogLevel::kDebug}});
  ASSERT_THAT(Generate(server.inference(), TextRequest("hello", 1)).status, Succeeds());
  const std::vector<Json> lines = Lines(server);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["message"], "call began");
  EXPECT_EQ(lines[0]["level"], "debug");
  EXPECT_EQ(lines[0]["request_id"], lines[1]["request_id"]);
}

TEST(CallLines, AreCountedAndSoAreThoseLeftOut) {
  TestServer server({.log = {.format = LogFormat::kJson, .lines_per_second = 1}});
  EXPECT_THAT(server.metrics().Text(),
              testing::AllOf(HasSubstr("ovq_log_lines_total{level=\"error\"} 0\n"),
                             HasSubstr("ovq_log_lines_suppressed_total{reason=\"blocked\"} 0\n"),
                             HasSubstr("ovq_log_lines_suppressed_total{reason=\"rate\"} 0\n")));
  for (int i = 0; i < 20; ++i) {
    ASSERT_THAT(Generate(server.inference(), TextRequest("hello", 1)).status, Succeeds());
  }
  const LogCounts counts = server.services().log.log.counts();
  EXPECT_EQ(counts.written[1], static_cast<int64_t>(Lines(server).size()));
  EXPECT_EQ(counts.written[1] + counts.over_rate, 20);
  EXPECT_GT(counts.over_rate, 0);
  EXPECT_THAT(server.metrics().Text(),
              HasSubstr(absl::StrCat("ovq_log_lines_suppressed_total{reason=\"rate\"} ",
                                     counts.over_rate, "\n")));
}

}  // namespace
}  // namespace ovq::server::test
