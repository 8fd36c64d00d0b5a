// Spans of calls, sent to a collector: OTLP over HTTP in JSON (opentelemetry.io/docs/specs/otlp).
// No gRPC here. Calls never wait for it: what does not fit in its queue is dropped and counted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ovq {

// Where spans go: http[s]://HOST:PORT[/PATH], by default /v1/traces.
struct TraceCollector {
  bool tls = false;
  std::string host;
  int port = 0;
  std::string path;
  std::string ca =
      {};  // with TLS: a file, PEM, of who may sign its certificate; empty: the system's
};
std::optional<TraceCollector> ParseTraceCollector(std::string_view url);

struct FinishedSpan {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // numbers of the schema

  std::string trace_id, span_id, parent_id, state;  // as of a Span; no parent: empty
  std::string name;
  Kind kind = Kind::kInternal;
  absl::Time start, end;
  std::vector<std::pair<std::string, std::variant<std::string, int64_t>>> attributes = {};
  absl::Status status = absl::OkStatus();
};

std::string NewSpanId();  // 16 hexadecimal digits

// The body of one request: ExportTraceServiceRequest of trace_service.proto, as its JSON mapping.
std::string OtlpJson(const std::vector<FinishedSpan>& spans);

struct TraceCounts {
  int64_t sent = 0;
  int64_t dropped = 0;  // the queue was full
  int64_t failed = 0;   // the collector was not there, or did not take them
};

// Any thread.
class TraceExporter {
 public:
  static constexpr size_t kMaxQueue = 8192;  // spans that wait
  static constexpr size_t kMaxBatch = 512;   // spans of a request

  explicit TraceExporter(TraceCollector collector, size_t max_queue = kMaxQueue);
  // Sends what waits, for at most some seconds.
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  void Add(FinishedSpan span);
  TraceCounts counts() const;

 private:
  void Run();

  const TraceCollector collector_;
  const size_t max_queue_;
  mutable std::mutex mutex_;  // guards the next four
  std::deque<FinishedSpan> queue_;
  TraceCounts counts_;
  bool ending_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace ovq
