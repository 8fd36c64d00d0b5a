#include "server/telemetry/call_summary.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/engine/common/session.h"

namespace ovq::server {
namespace {

TEST(CallSummary, OnlySessionIdsAreSessions) {
  CallSummary summary;
  summary.SetSession("0123456789abcdef0123456789abcdef");
  EXPECT_EQ(summary.session_id, "0123456789abcdef0123456789abcdef");
  for (const char* other :
       {"", "my secret", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcdef0"}) {
    summary.SetSession(other);
    EXPECT_EQ(summary.session_id, "") << other;
  }
  EXPECT_TRUE(engine::IsSessionId(engine::RandomSource(1).NextId()));
  const std::string id = absl::StrCat(".", engine::RandomSource(1).NextId());
  EXPECT_TRUE(engine::IsSessionId("My_key-1" + id));
  EXPECT_TRUE(engine::IsSessionId(std::string(64, 'k') + id));
  for (const std::string& key : {std::string(), std::string(65, 'k'), std::string("my secret"),
                                 std::string("a.b"), std::string("k\n")}) {
    EXPECT_FALSE(engine::IsSessionId(key + id)) << key;
  }
}

TEST(CallSummary, FaultsOfTheServerAreWarnings) {
  using Code = absl::StatusCode;
  for (Code code : {Code::kInternal, Code::kUnknown, Code::kDataLoss, Code::kUnavailable,
                    Code::kDeadlineExceeded}) {
    EXPECT_EQ(CallLogLevel(code, false), LogLevel::kWarning) << absl::StatusCodeToString(code);
  }
  EXPECT_EQ(CallLogLevel(Code::kUnavailable, true), LogLevel::kInfo);
  for (Code code : {Code::kOk, Code::kInvalidArgument, Code::kNotFound, Code::kCancelled,
                    Code::kResourceExhausted, Code::kUnauthenticated, Code::kUnimplemented}) {
    EXPECT_EQ(CallLogLevel(code, false), LogLevel::kInfo) << absl::StatusCodeToString(code);
  }
}

TEST(CallSummary, AddsUpWhatTheEngineDid) {
  WorkSummary work;
  LogFields fields;
  work.AppendTo(fields);
  EXPECT_TRUE(fields.empty());
  engine::StreamEvent event;
  event.started.emplace().prompt_tokens = 7;
  work.Add(event);
  for (int i = 0; i < 3; ++i) {
    engine::StreamEvent chunk;
    chunk.chunk.emplace().token_ids = {1, 2};
    work.Add(chunk);
  }
  engine::StreamEvent last;
  engine::Finished& finished = last.finished.emplace();
  finished.reason = engine::FinishReason::kLength;
  finished.usage.generated_tokens = 6;
  finished.usage.queue_time = absl::Microseconds(1500);
  finished.usage.prefill_time = absl::Nanoseconds(2'000'400);
  work.Add(last);
  EXPECT_EQ(work.prompt_tokens, 7);
  EXPECT_EQ(work.generated_tokens, 6);
  work.AppendTo(fields);
  EXPECT_EQ(FormatLogLine(LogFormat::kText, absl::UnixEpoch(), LogLevel::kInfo, LogKind::kCall, "x",
                          fields),
            "ovq-server: x prompt_tokens=7 generated_tokens=6 queue_ms=1.5 ttft_ms=3.5 "
            "finish_reason=length");
}

}  // namespace
}  // namespace ovq::server
