// The program's log: one line for each event, as text or JSON. No gRPC here.
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

namespace ovq::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
inline constexpr std::array<const char*, 4> kLogLevels = {"debug", "info", "warning", "error"};
enum class LogFormat : uint8_t { kText, kJson };
inline constexpr std::array<const char*, 2> kLogFormats = {"text", "json"};

// The subject of a line. Each kind has a rate of its own at each level, so many calls never hide
// lines about the server itself, nor successful calls those that failed.
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
  LogLevel level = LogLevel::kInfo;  // lines below it are dropped
  int lines_per_second = 50;         // of one kind and level; bursts of twice as many
};

// Counts of lines so far.
struct LogCounts {
  std::array<int64_t, kLogLevels.size()> written = {};  // by level, given to the writing thread
  int64_t over_rate = 0;
  int64_t blocked = 0;  // stderr took nothing and the buffer was full
  int64_t lost = 0;     // of those written: stderr was closed, or its disk full
};

// Any thread. Callers never wait for the output: a thread of the log writes from a bounded buffer.
// Lines that find no room or exceed the rate are dropped and counted; the next line of that kind
// and level gives the count in its field `suppressed`.
class Log {
 public:
  static constexpr size_t kBufferBytes = size_t{1} << 20;  // lines that wait to be written
  static constexpr size_t kMaxTextBytes = 1024;  // message and each field are cut beyond it

  explicit Log(const LogOptions& options, int fd = 2, Clock clock = {});
  // Waits up to a second for the last lines.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(LogLevel level) const { return level >= options_.level; }
  // Invalid UTF-8 is written as U+FFFD; a line never contains a line break.
  void Write(LogLevel level, LogKind kind, std::string_view message, const LogFields& fields = {});
  void Info(std::string_view message, const LogFields& fields = {}) {
    Write(LogLevel::kInfo, LogKind::kServer, message, fields);
  }
  void Warning(std::string_view message, const LogFields& fields = {}) {
    Write(LogLevel::kWarning, LogKind::kServer, message, fields);
  }
  // A fault of the server: why it ends, an iteration that hangs, what the session store failed to
  // do.
  void Error(const absl::Status& status) {
    Write(LogLevel::kError, LogKind::kServer, std::string(status.message()));
  }

  // Waits at most this long until all lines so far are written. False if they are not.
  bool Flush(absl::Duration at_most);
  LogCounts counts() const;

 private:
  struct Bucket {
    TokenBucket lines;
    int64_t suppressed = 0;  // since the last line
  };
  class Writer;

  // Charges one line to its rate and takes the count of suppressed lines. False: over the rate.
  bool Admit(Bucket& bucket, int64_t& suppressed);

  const LogOptions options_;
  const Clock clock_;
  const std::shared_ptr<Writer> writer_;
  mutable std::mutex mutex_;  // guards the rest
  std::array<std::array<Bucket, kLogLevels.size()>, kLogKinds.size()> buckets_;
  LogCounts counts_;
};

// One line as Write makes it, without its line break.
std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, LogKind kind,
                          std::string_view message, const LogFields& fields);

}  // namespace ovq::server
