#include "server/telemetry/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"

namespace ovq::server {

// --- formatting ---

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Cut(std::string_view text) {
  if (text.size() <= Log::kMaxTextBytes) return std::string(text);
  return std::string(text.substr(0, Log::kMaxTextBytes)) + "...";
}

// ASCII text: control characters, which a terminal may take for commands, and all characters beyond
// ASCII are escaped.
std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace);
}

OrderedJson ToJson(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return Cut(*text);
  return std::visit([](const auto& other) { return OrderedJson(other); }, value);
}

bool IsPlain(std::string_view text, std::string_view special) {
  for (const char c : text) {
    if (c < ' ' || c > '~' || special.find(c) != std::string_view::npos) return false;
  }
  return true;
}

std::string ValueText(const LogValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && !text->empty() && text->size() <= Log::kMaxTextBytes &&
      IsPlain(*text, " \"=\\")) {
    return *text;
  }
  return Dump(ToJson(value));
}

std::string TextLine(LogLevel level, std::string_view message, const LogFields& fields) {
  std::string line = "ovq-server: ";
  if (level != LogLevel::kInfo) {
    absl::StrAppend(&line, kLogLevels[static_cast<size_t>(level)], ": ");
  }
  const std::string cut = Cut(message);
  if (IsPlain(cut, "")) {
    line += cut;
  } else {
    const std::string quoted = Dump(OrderedJson(cut));
    line.append(quoted, 1, quoted.size() - 2);
  }
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=", ValueText(field.value));
  }
  return line;
}

}  // namespace

std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, LogKind kind,
                          std::string_view message, const LogFields& fields) {
  if (format == LogFormat::kText) return TextLine(level, message, fields);
  OrderedJson line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone());
  line["level"] = kLogLevels[static_cast<size_t>(level)];
  line["kind"] = kLogKinds[static_cast<size_t>(kind)];
  line["message"] = Cut(message);
  for (const LogField& field : fields) line[field.key] = ToJson(field.value);
  return Dump(line);
}

// --- writing ---

// The writing thread and its buffer. Outlives the log while a write does not end.
class Log::Writer {
 public:
  explicit Writer(int fd) : fd_(fd) {}

  // `self` owns this object.
  void Start(const std::shared_ptr<Writer>& self) {
    // The thread blocks all signals: those that other threads wait for, and SIGPIPE.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([self] { self->Loop(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // False if there is no room.
  bool Push(std::string_view line) {
    {
      std::lock_guard lock(mutex_);
      if (waiting_.size() + line.size() + 1 > kBufferBytes) return false;
      waiting_.append(line).push_back('\n');
    }
    changed_.notify_all();
    return true;
  }

  // False if the time runs out before all is written.
  bool Flush(absl::Duration at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(at_most),
                             [this] { return waiting_.empty() && !writing_; });
  }

  int64_t lost() const { return lost_; }  // lines that could not be written

  void End() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
  }

 private:
  void Loop() {
    NameThisThread("log");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::string lines = std::exchange(waiting_, {});
      writing_ = true;
      lock.unlock();
      WriteAll(lines);
      lock.lock();
      writing_ = false;
      changed_.notify_all();
    }
  }

  void WriteAll(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {  // another user of the file may have set O_NONBLOCK
        pollfd file = {.fd = fd_, .events = POLLOUT, .revents = 0};
        (void)poll(&file, 1, -1);
        continue;
      }
      if (n <= 0) {  // closed or full; cannot be reported elsewhere
        lost_ += std::ranges::count(text, '\n');
        return;
      }
      text.remove_prefix(static_cast<size_t>(n));
    }
  }

  const int fd_;
  std::atomic<int64_t> lost_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  bool writing_ = false;
  bool ending_ = false;
};

Log::Log(const LogOptions& options, int fd, Clock clock)
    : options_(options), clock_(std::move(clock)), writer_(std::make_shared<Writer>(fd)) {
  const double rate = options.lines_per_second;
  for (auto& of_kind : buckets_) of_kind.fill({TokenBucket(rate, 2 * rate, clock_.steady())});
  writer_->Start(writer_);
}

Log::~Log() {
  Flush(absl::Seconds(1));
  writer_->End();
}

bool Log::Admit(Bucket& bucket, int64_t& suppressed) {
  if (bucket.lines.left(clock_.steady()) < 1) {
    ++bucket.suppressed;
    ++counts_.over_rate;
    return false;
  }
  bucket.lines.Charge(1);
  suppressed = std::exchange(bucket.suppressed, 0);
  return true;
}

void Log::Write(LogLevel level, LogKind kind, std::string_view message, const LogFields& fields) {
  if (!enabled(level)) return;
  const size_t number = static_cast<size_t>(level);
  Bucket& bucket = buckets_[static_cast<size_t>(kind)][number];
  int64_t suppressed = 0;
  {
    std::lock_guard lock(mutex_);
    if (!Admit(bucket, suppressed)) return;
  }
  const absl::Time now = clock_.wall();
  LogFields all = fields;
  if (suppressed > 0) all.emplace_back("suppressed", suppressed);
  const bool written =
      writer_->Push(FormatLogLine(options_.format, now, level, kind, message, all));
  std::lock_guard lock(mutex_);
  if (written) {
    ++counts_.written[number];
  } else {
    ++counts_.blocked;
    bucket.suppressed += suppressed + 1;
  }
}

bool Log::Flush(absl::Duration at_most) { return writer_->Flush(at_most); }

LogCounts Log::counts() const {
  std::lock_guard lock(mutex_);
  LogCounts counts = counts_;
  counts.lost = writer_->lost();
  return counts;
}

}  // namespace ovq::server
