// The log: the form of its lines, levels, rates, and a stderr that is stuck.
#include "server/telemetry/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/server/telemetry/log_file.h"

namespace ovq::server::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

const absl::Time kTime = absl::FromUnixMicros(1'700'000'000'123'456);

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "") << "a line without an end";
  lines.pop_back();
  return lines;
}

std::string JsonLine(std::string_view message, const LogFields& fields = {}) {
  return FormatLogLine(LogFormat::kJson, kTime, LogLevel::kWarning, LogKind::kCall, message,
                       fields);
}
std::string TextLine(std::string_view message, const LogFields& fields = {},
                     LogLevel level = LogLevel::kInfo) {
  return FormatLogLine(LogFormat::kText, kTime, level, LogKind::kCall, message, fields);
}

TEST(LogLine, JsonHasTypedFieldsInOrder) {
  EXPECT_EQ(JsonLine("call ended", {{"method", "Chat"},
                                    {"tokens", int64_t{1} << 60},
                                    {"ms", 1.5},
                                    {"sampled", true},
                                    {"tenant", ""}}),
            R"({"time":"2023-11-14T22:13:20.123456Z","level":"warning","kind":"call",)"
            R"("message":"call ended","method":"Chat","tokens":1152921504606846976,"ms":1.5,)"
            R"("sampled":true,"tenant":""})");
  // JSON has no such numbers.
  EXPECT_TRUE(Json::parse(JsonLine("x", {{"ms", std::nan("")}}))["ms"].is_null());
}

TEST(LogLine, IsValidJsonInAsciiWhateverIsInIt) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  for (const std::string& hostile :
       {all, std::string("\xff\xfe\xed\xa0\x80\xf8"), std::string("\"}\n{\"level\":\"error\""),
        std::string("\xe2\x80\xa8 \x1b[2J \xc2\x9b"), std::string(3, '\0')}) {
    const std::string line = JsonLine(hostile, {{"field", hostile}});
    const Json json = Json::parse(line);
    EXPECT_EQ(json["message"], json["field"]);
    EXPECT_EQ(json["level"], "warning");
    for (const std::string& made : {line, TextLine(hostile, {{"field", hostile}})}) {
      for (char c : made) EXPECT_TRUE(c >= ' ' && c <= '~') << int{c} << " in " << made;
    }
  }
  EXPECT_EQ(Json::parse(JsonLine("a\xff!"))["message"], "a\xef\xbf\xbd!");
  EXPECT_EQ(Json::parse(JsonLine("\xc3\xa4"))["message"], "\xc3\xa4");
}

TEST(LogLine, LongTextIsCut) {
  // Also when the limit falls within a character.
  for (const std::string& character : {std::string("x"), std::string("\xe2\x82\xac")}) {
    std::string text;
    while (text.size() <= 10 * Log::kMaxTextBytes) text += character;
    const std::string cut = Json::parse(JsonLine(text, {{"field", text}}))["field"];
    EXPECT_LE(cut.size(), Log::kMaxTextBytes + 6);
    EXPECT_TRUE(cut.ends_with("..."));
    EXPECT_LE(TextLine(text).size(), 3 * Log::kMaxTextBytes);
  }
}

TEST(LogLine, TextHasKeysAndValues) {
  EXPECT_EQ(TextLine("metrics on http://127.0.0.1:1/metrics"),
            "ovq-server: metrics on http://127.0.0.1:1/metrics");
  EXPECT_EQ(TextLine("call ended",
                     {{"method", "Chat"},
                      {"error", "prompt: \"no\""},
                      {"empty", ""},
                      {"ms", 2.25},
                      {"n", int64_t{-3}},
                      {"on", false}},
                     LogLevel::kWarning),
            R"(ovq-server: warning: call ended method=Chat error="prompt: \"no\"" empty="" )"
            R"(ms=2.25 n=-3 on=false)");
  EXPECT_EQ(TextLine("two\nlines"), "ovq-server: two\\nlines");
}

TEST(LogLevels, LinesBelowAreLeftOut) {
  LogFile file;
  Log log({.level = LogLevel::kWarning}, file.fd());
  log.Write(LogLevel::kDebug, LogKind::kCall, "no");
  log.Info("no");
  log.Warning("yes");
  log.Error(absl::UnavailableError("also"));
  ASSERT_TRUE(log.Flush(absl::Seconds(10)));
  EXPECT_EQ(file.Text(), "ovq-server: warning: yes\novq-server: error: also\n");
  const LogCounts counts = log.counts();
  EXPECT_THAT(counts.written, testing::ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(counts.over_rate + counts.blocked, 0);
}

class LogRate : public testing::Test {
 protected:
  std::vector<std::string> Written() {
    EXPECT_TRUE(log_.Flush(absl::Seconds(10)));
    return Lines(file_.Text());
  }
  void WriteCalls(int count) {
    for (int i = 0; i < count; ++i) log_.Write(LogLevel::kInfo, LogKind::kCall, "call");
  }

  LogFile file_;
  SteadyTime now_{};
  absl::Time wall_ = kTime;
  Log log_{{.format = LogFormat::kJson, .lines_per_second = 10},
           file_.fd(),
           {.steady = [this] { return now_; }, .wall = [this] { return wall_; }}};
};

TEST_F(LogRate, LinesOverItAreCountedAndToldLater) {
  WriteCalls(25);
  EXPECT_EQ(Written().size(), 20u);  // bursts of twice the rate
  EXPECT_EQ(log_.counts().over_rate, 5);
  now_ += std::chrono::milliseconds(100);
  WriteCalls(2);
  const std::vector<std::string> lines = Written();
  ASSERT_EQ(lines.size(), 21u);
  EXPECT_EQ(Json::parse(lines[20])["suppressed"], 5);
  EXPECT_EQ(log_.counts().over_rate, 6);
  now_ += std::chrono::hours(1);
  WriteCalls(100);
  EXPECT_EQ(Written().size(), 41u);
  EXPECT_EQ(Json::parse(Written()[21])["suppressed"], 1);
  EXPECT_FALSE(Json::parse(Written()[22]).contains("suppressed"));
}

TEST_F(LogRate, IsOneOfEachKindAndLevel) {
  WriteCalls(50);
  log_.Write(LogLevel::kWarning, LogKind::kCall, "failed");
  log_.Info("signal 15");
  const std::vector<std::string> lines = Written();
  ASSERT_EQ(lines.size(), 22u);
  EXPECT_THAT(lines[20], HasSubstr("failed"));
  EXPECT_THAT(lines[21], HasSubstr("signal 15"));
}

TEST_F(LogRate, AWallClockThatIsSetGivesNothingAndStopsNothing) {
  WriteCalls(20);
  wall_ += absl::Hours(5);
  WriteCalls(1);
  wall_ -= absl::Hours(10);
  WriteCalls(1);
  EXPECT_EQ(Written().size(), 20u);
  now_ += std::chrono::milliseconds(100);
  WriteCalls(1);
  EXPECT_EQ(Written().size(), 21u);
}

TEST(LogThreads, LinesAreWholeAndAllThere) {
  LogFile file;
  Log log({.format = LogFormat::kJson, .lines_per_second = 1'000'000}, file.fd());
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < kEach; ++i) {
        log.Info(std::string(200, static_cast<char>('a' + t)), {{"n", int64_t{i}}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(log.Flush(absl::Seconds(10)));
  std::array<int, kThreads> next = {};
  for (const std::string& line : Lines(file.Text())) {
    const Json json = Json::parse(line);
    const std::string message = json["message"];
    EXPECT_EQ(message, std::string(200, message[0]));
    EXPECT_EQ(json["n"], next[static_cast<size_t>(message[0] - 'a')]++);
  }
  EXPECT_THAT(next, testing::Each(kEach));
}

TEST(LogThreads, AStuckReaderHoldsUpNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto log = std::make_unique<Log>(LogOptions{.lines_per_second = 1'000'000}, ends[1]);
  const std::string line(1000, 'x');
  // Far more than the pipe and the buffer hold: it would never end if it waited for the reader.
  for (size_t bytes = 0; bytes < 3 * Log::kBufferBytes; bytes += line.size()) log->Info(line);
  // The writer empties the buffer once before it is stuck, perhaps late: goes on until a line is
  // dropped.
  LogCounts counts = log->counts();
  for (int64_t before = -1; before != counts.blocked - 1;) {
    before = counts.blocked;
    log->Info(line);
    counts = log->counts();
  }
  EXPECT_GT(counts.blocked, 0);
  EXPECT_GT(counts.written[1], 0);
  EXPECT_FALSE(log->Flush(absl::Milliseconds(10)));

  // Once it reads again, all accepted lines come, and the next line gives the count of the others.
  std::string text;
  const auto read_some = [&] {
    char buffer[1 << 16];
    const ssize_t n = read(ends[0], buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    text.append(buffer, static_cast<size_t>(n));
  };
  const auto count = [&text] { return std::count(text.begin(), text.end(), '\n'); };
  while (count() < counts.written[1]) ASSERT_NO_FATAL_FAILURE(read_some());
  log->Info("again");
  while (count() < counts.written[1] + 1) ASSERT_NO_FATAL_FAILURE(read_some());
  int64_t told = 0;
  for (const std::string& one : Lines(text)) {
    const size_t at = one.find(" suppressed=");
    if (at != std::string::npos) told += std::stoll(one.substr(at + strlen(" suppressed=")));
  }
  EXPECT_EQ(told, counts.blocked);
  EXPECT_THAT(Lines(text).back(), HasSubstr("again suppressed="));
  close(ends[0]);
  close(ends[1]);
}

TEST(LogThreads, EndsThoughTheReaderIsStuckOrGone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    Log log({.lines_per_second = 1'000'000}, ends[1]);
    for (int i = 0; i < 200; ++i) log.Info(std::string(1000, 'x'));
  }  // its destructor gives up after a second
  // The write of the log's thread now fails; a SIGPIPE would end this program.
  close(ends[0]);
  Log log({}, ends[1]);
  log.Info("to nobody");
  EXPECT_TRUE(log.Flush(absl::Seconds(10)));
  // ends[1] stays open: the thread of the first log may still be inside its write.
}

}  // namespace
}  // namespace ovq::server::test
