#include "server/telemetry/trace_export.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"
#include "server/telemetry/call_summary.h"

namespace ovq::server {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// A listening socket that accepts nobody until the test calls Serve.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }

  TraceCollector collector() const {
    return {.host = "127.0.0.1", .port = port_, .path = "/v1/traces"};
  }
  // Accepts one request, answers it, and returns the request.
  std::string Serve(const std::string& status, const std::string& body = "") const {
    const int connection = accept(fd_, nullptr, nullptr);
    std::string text;
    size_t whole = std::string::npos;
    char buffer[4096];
    while (text.size() < whole) {
      const ssize_t n = recv(connection, buffer, sizeof(buffer), 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
      const size_t head = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
      if (head != std::string::npos) whole = head + 4 + std::stoul(text.substr(length + 16));
    }
    const std::string answer =
        absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
    send(connection, answer.data(), answer.size(), 0);
    close(connection);
    return text;
  }

 private:
  int fd_;
  int port_;
};

FinishedSpan Example(const std::string& name = "s") {
  return {.trace_id = std::string(32, 'a'),
          .span_id = std::string(16, 'b'),
          .parent_id = "",
          .state = "",
          .name = name,
          .start = absl::FromUnixNanos(1'700'000'000'123'456'789),
          .end = absl::FromUnixNanos(1'700'000'001'000'000'000)};
}

TEST(TraceCollector, IsAnHttpUrlWithAPort) {
  const auto plain = ParseTraceCollector("http://collector:4318");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(absl::StrCat(plain->tls, " ", plain->host, " ", plain->port, " ", plain->path),
            "0 collector 4318 /v1/traces");
  const auto whole = ParseTraceCollector("https://[::1]:80/a/b");
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(absl::StrCat(whole->tls, " ", whole->host, " ", whole->port, " ", whole->path),
            "1 ::1 80 /a/b");
  for (const char* bad :
       {"", "collector:4318", "https://a", "ftp://a:1", "http://a", "http://:1", "http://a:0",
        "http://a:65536", "http://a:1/x y", "http://a:1/x\r\nEvil: 1"}) {
    EXPECT_FALSE(ParseTraceCollector(bad).has_value()) << bad;
  }
}

TEST(OtlpJson, IsTheSchemasMapping) {
  FinishedSpan span = Example("ovq.v1/Generate");
  span.kind = FinishedSpan::Kind::kServer;
  span.parent_id = std::string(16, 'c');
  span.attributes = {{"text", "a\xff"}, {"number", int64_t{1} << 60}};
  span.status = absl::UnavailableError("gone");
  const Json all = Json::parse(OtlpJson({span}));
  const Json& out = all["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(out["parentSpanId"], "cccccccccccccccc");
  EXPECT_EQ(out["startTimeUnixNano"], "1700000000123456789");
  EXPECT_EQ(out["kind"], 2);
  EXPECT_EQ(out["status"], Json({{"code", 2}, {"message", "gone"}}));
  EXPECT_EQ(out["attributes"][1]["value"]["intValue"], "1152921504606846976");
  EXPECT_EQ(all["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"],
            "ovq-server");
}

TEST(OtlpJson, DoesNotHaveWhatAnErrorQuotes) {
  FinishedSpan span = Example();
  span.status = engine::BadField("temperature", "a number", "my secret");
  const Json all = Json::parse(OtlpJson({span}));
  EXPECT_EQ(all["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["status"]["message"],
            "temperature: expected a number");
}

TEST(TraceExporter, SendsWhatWaitsAtItsEnd) {
  const Listener listener;
  std::string got;
  std::thread collector([&] { got = listener.Serve("200 OK"); });
  {
    TraceExporter exporter(listener.collector());
    exporter.Add(Example("first"));
    exporter.Add(Example("second"));
  }
  collector.join();
  EXPECT_THAT(got, testing::StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(got, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_EQ(Json::parse(
                got.substr(got.find("\r\n\r\n") + 4))["resourceSpans"][0]["scopeSpans"][0]["spans"]
                .size(),
            2u);
}

TEST(TraceExporter, CountsWhatACollectorRefuses) {
  const Listener listener;
  TraceExporter exporter(listener.collector());
  exporter.Add(Example());
  listener.Serve("503 Unavailable");
  while (exporter.counts().failed == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(exporter.counts().sent, 0);
  exporter.Add(Example());
  listener.Serve("202 Accepted");
  while (exporter.counts().sent == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(TraceExporter, CountsThePartThatACollectorRejects) {
  const Listener listener;
  for (const char* body :
       {R"({"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}})", "no JSON"}) {
    TraceExporter exporter(listener.collector());
    for (int i = 0; i < 3; ++i) exporter.Add(Example());
    listener.Serve("200 OK", body);
    while (exporter.counts().sent == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const bool rejects = std::string_view(body).find('2') != std::string_view::npos;
    EXPECT_EQ(exporter.counts().sent, rejects ? 1 : 3) << body;
    EXPECT_EQ(exporter.counts().failed, rejects ? 2 : 0) << body;
  }
}

// The collector accepts and never answers: calls with spans do not notice. Had one of them waited
// until there was room, fewer spans would be dropped.
TEST(TraceExporter, NeverKeepsACallWaiting) {
  const Listener silent;
  TraceExporter exporter(silent.collector(), /*max_queue=*/100);
  for (int i = 0; i < 5000; ++i) exporter.Add(Example());
  EXPECT_GE(exporter.counts().dropped, 5000 - 100 - static_cast<int>(TraceExporter::kMaxBatch));
}

class Collected : public testing::Test {
 protected:
  // The spans of a call, as a collector gets them.
  Json Export(const EndedCall& call) {
    const Listener listener;
    std::string got;
    std::thread collector([&] { got = listener.Serve("200 OK"); });
    {
      TraceExporter exporter(listener.collector());
      TraceCall(call, exporter);
      exporter.Add(Example("last"));  // so that there is always one
    }
    collector.join();
    const Json all = Json::parse(got.substr(got.find("\r\n\r\n") + 4));
    return all["resourceSpans"][0]["scopeSpans"][0]["spans"];
  }

  EndedCall Call() {
    return {.method = "Generate",
            .span = span_,
            .request_id = id_,
            .summary = summary_,
            .turn = std::nullopt,
            .status = absl::OkStatus(),
            .start = absl::FromUnixSeconds(100),
            .end = absl::FromUnixSeconds(110)};
  }

  Span span_ = {.trace_id = std::string(32, '1'),
                .span_id = std::string(16, '2'),
                .parent_id = "",
                .sampled = false,
                .state = ""};
  std::string id_ = "request";
  CallSummary summary_;
};

TEST_F(Collected, PartsOfACallLieBackToBackUpToItsEnd) {
  summary_.work.queue_time = absl::Seconds(1);
  summary_.work.prefill_time = absl::Seconds(3);
  summary_.work.decode_time = absl::Seconds(5);
  const Json spans = Export(Call());
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0]["name"], "ovq.v1/Generate");
  EXPECT_EQ(spans[0]["spanId"], span_.span_id);
  const std::vector<std::pair<std::string, std::pair<int, int>>> parts = {
      {"decode", {105, 110}}, {"prefill", {102, 105}}, {"queue", {101, 102}}};
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = spans[i + 1];
    EXPECT_EQ(part["name"], parts[i].first);
    EXPECT_EQ(part["parentSpanId"], span_.span_id);
    EXPECT_EQ(part["startTimeUnixNano"], absl::StrCat(parts[i].second.first, "000000000"));
    EXPECT_EQ(part["endTimeUnixNano"], absl::StrCat(parts[i].second.second, "000000000"));
  }
}

TEST_F(Collected, ATurnLiesUnderItsCall) {
  EndedCall turn = Call();
  turn.turn = 3;
  const Json spans = Export(turn);
  EXPECT_EQ(spans[0]["name"], "turn");
  EXPECT_EQ(spans[0]["parentSpanId"], span_.span_id);
  EXPECT_NE(spans[0]["spanId"], span_.span_id);
}

TEST_F(Collected, NothingOfATraceThatIsNotSampled) {
  span_.parent_id = std::string(16, '3');
  EXPECT_EQ(Export(Call()).size(), 1u);
  span_.sampled = true;
  EXPECT_EQ(Export(Call()).size(), 2u);
}

}  // namespace
}  // namespace ovq::server
