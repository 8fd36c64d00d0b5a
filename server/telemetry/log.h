// The program's log: one line per event, as text or JSON. No gRPC here.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/token_bucket.h"

namespace ovq {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
inline constexpr std::array<const char*, 4> kLogLevels = {"debug", "info", "warning", "error"};
enum class LogFormat : uint8_t { kText, kJson };
inline constexpr std::array<const char*, 2> kLogFormats = {"text", "json"};

// What a line is about. Each kind has a rate of its own at each level: many calls never hide what
// the server says of itself, nor calls that went well those that failed.
enum class LogKind : uint8_t { kServer, kCall, kTurn, kCredentials, kGrpc };
inline constexpr std::array<const char*, 5> kLogKinds = {"server", "call", "turn", "credentials",
                                                         "grpc"};

using LogValue = std::variant<std::string, int64_t, double, bool>;
struct LogField {
  LogField(const char* key, LogValue value) : key(key), value(std::move(value)) {}
  const char* key;
  LogValue value;
};
using LogFields = std::vector<LogField>;

struct LogOptions {
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;  // lines below it are not made
  int lines_per_second = 50;         // of one kind and level; twice as many may come at once
};

// What became of the lines so far.
struct LogCounts {
  std::array<int64_t, kLogLevels.size()> written = {};  // given to the writing thread
  int64_t over_rate = 0;
  int64_t blocked = 0;  // stderr took nothing and the buffer was full
  int64_t lost = 0;     // of those written: stderr was closed, or its disk full
};

// Any thread. A caller never waits for the place the lines go to: a thread of the log's own writes
// them from a bounded buffer, and lines that find no room are dropped and counted, as those over
// the rate are. The next line of that kind and level says how many in its field `suppressed`.
class Log {
 public:
  static constexpr size_t kBufferBytes = size_t{1} << 20;  // of lines that wait to be written
  static constexpr size_t kMaxTextBytes = 1024;  // of the message and of each field; then it is cut

  explicit Log(const LogOptions& options, int fd = 2, Clock clock = {});
  // Waits a second for the last lines.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(LogLevel level) const { return level >= options_.level; }
  // Bytes that are not UTF-8 come out as U+FFFD; a line never contains a line break.
  void Write(LogLevel level, LogKind kind, std::string_view message, const LogFields& fields = {});
  void Info(std::string_view message, const LogFields& fields = {}) {
    Write(LogLevel::kInfo, LogKind::kServer, message, fields);
  }
  void Warning(std::string_view message, const LogFields& fields = {}) {
    Write(LogLevel::kWarning, LogKind::kServer, message, fields);
  }
  // Why the program ends.
  void Error(const absl::Status& status) {
    Write(LogLevel::kError, LogKind::kServer, std::string(status.message()));
  }

  // Waits until all lines so far are written, at most so long. False if they are not.
  bool Flush(absl::Duration at_most);
  LogCounts counts() const;

 private:
  struct Bucket {
    TokenBucket lines;
    int64_t suppressed = 0;  // since the last line
  };
  class Writer;

  // Takes a line and what was suppressed so far; false if the rate has none left.
  bool Admit(Bucket& bucket, int64_t& suppressed);

  const LogOptions options_;
  const Clock clock_;
  const std::shared_ptr<Writer> writer_;
  mutable std::mutex mutex_;  // guards the rest
  std::array<std::array<Bucket, kLogLevels.size()>, kLogKinds.size()> buckets_;
  LogCounts counts_;
};

// One line without its end, as Write makes it.
std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, LogKind kind,
                          std::string_view message, const LogFields& fields);

}  // namespace ovq
