#include "clients/chat/conversation.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/chat/prompt_text.h"
#include "clients/common/terminal.h"

namespace ovq {
namespace {

// Far below the 4 MiB that a gRPC server takes in one message.
constexpr size_t kMaxPartBytes = size_t{64} << 10;

template <typename Duration>
double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

std::string Rate(uint64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "";
  return absl::StrFormat(", %.1f tokens/s", static_cast<double>(tokens) / seconds);
}

void PrintFlushed(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

std::string FormatStats(const TurnStats& s) {
  const std::string first = s.first_token_seconds
                                ? absl::StrFormat("%.0f ms", *s.first_token_seconds * 1e3)
                                : std::string("-");
  // The first token is drawn from the prompt's last row: decoding begins with the second.
  const uint64_t decoded = s.generated_tokens > 0 ? s.generated_tokens - 1 : 0;
  return absl::StrCat("[prompt ", s.prompt_tokens, " tokens",
                      Rate(s.prompt_tokens, s.prefill_seconds), " | generated ", s.generated_tokens,
                      " tokens", Rate(decoded, s.decode_seconds), " | TTFT ", first, " | state ",
                      HumanBytes(static_cast<double>(s.state_bytes)), " | position ", s.position,
                      " | ", ReasonName(s.reason), "]");
}

Conversation::Conversation(const Connection& connection, const ChatOptions& options)
    : options_(options),
      stdout_is_terminal_(isatty(STDOUT_FILENO) != 0),
      stream_(connection, options.open.has_session_id() ? SessionKeyOf(options.open.session_id())
                                                        : NewSessionKey()) {}

bool Conversation::Open() {
  v1::ChatRequest request;
  *request.mutable_open() = options_.open;
  v1::ChatResponse response;
  if (!stream_.Send(request) || !stream_.Read(&response)) return false;
  session_ = response.opened().session();
  position_ = session_.position();
  return true;
}

bool Conversation::Ask(std::string_view question) {
  if (!BeginTurn()) return false;
  const Clock::time_point asked = Clock::now();
  TurnStats stats;
  token_list_.clear();
  last_byte_ = '\n';
  const std::vector<std::string_view> parts = SplitPrompt(question, kMaxPartBytes);
  if (SendLeadingParts(parts, stats)) {
    call_ended_ = !SendPart(parts.back(), false) || !StreamAnswer(asked, stats);
  }
  EndTurn();
  if (call_ended_) return false;
  Report(stats);
  return true;
}

bool Conversation::SendPart(std::string_view part, bool more) {
  v1::ChatRequest request;
  v1::ChatTurn& turn = *request.mutable_turn();
  turn.mutable_prompt()->set_text(std::string(part));
  turn.set_more(more);
  if (!more) {
    *turn.mutable_sampling() = options_.sampling;
    *turn.mutable_stop() = options_.stop;
    *turn.mutable_output() = options_.output;
  }
  return stream_.Send(request);
}

bool Conversation::SendLeadingParts(const std::vector<std::string_view>& parts, TurnStats& stats) {
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    v1::ChatResponse response;
    if (!SendPart(parts[i], true) || !stream_.Read(&response)) {
      call_ended_ = true;
      return false;
    }
    const uint64_t position = response.has_finished() ? response.finished().usage().position()
                                                      : response.absorbed().position();
    stats.prompt_tokens += position - position_;
    stats.position = position_ = position;
    stats.prefill_seconds = Seconds(Clock::now() - begin);
    if (response.has_finished() || cancelling()) {
      stats.reason = v1::FINISH_REASON_CANCELLED;
      stats.state_bytes = response.finished().usage().state_bytes();
      return false;
    }
  }
  return true;
}

bool Conversation::StreamAnswer(Clock::time_point asked, TurnStats& stats) {
  v1::ChatResponse response;
  while (stream_.Read(&response)) {
    if (response.has_chunk()) {
      if (!stats.first_token_seconds) stats.first_token_seconds = Seconds(Clock::now() - asked);
      PrintChunk(response.chunk());
    } else if (response.has_finished()) {
      const v1::Usage& usage = response.finished().usage();
      stats.reason = response.finished().reason();
      stats.prompt_tokens += usage.prompt_tokens();
      stats.generated_tokens = usage.generated_tokens();
      stats.prefill_seconds += Seconds(usage.prefill_time());
      stats.decode_seconds = Seconds(usage.decode_time());
      stats.state_bytes = usage.state_bytes();
      stats.position = position_ = usage.position();
      return true;
    }
  }
  return false;
}

void Conversation::PrintChunk(const v1::TokenChunk& chunk) {
  if (!chunk.text().empty()) {
    PrintFlushed(stdout, stdout_is_terminal_ ? Printable(chunk.text()) : chunk.text());
    last_byte_ = chunk.text().back();
  }
  for (int i = 0; i < chunk.logprobs_size() && i < chunk.token_ids_size(); ++i) {
    absl::StrAppendFormat(&token_list_, "%u\t%.6f\n", chunk.token_ids(i), chunk.logprobs(i));
  }
}

void Conversation::Report(const TurnStats& stats) {
  // One answer goes byte for byte into a file or pipe; answers of a conversation end a line.
  const bool end_line = stdout_is_terminal_ || options_.interactive;
  if (end_line && last_byte_ != '\n') PrintFlushed(stdout, "\n");
  PrintFlushed(stderr, absl::StrCat(token_list_, FormatStats(stats), "\n"));
}

bool Conversation::BeginTurn() {
  const std::lock_guard lock(phase_mutex_);
  if (phase_ == Phase::kQuit) return false;
  phase_ = Phase::kAnswering;
  return true;
}

void Conversation::EndTurn() {
  const std::lock_guard lock(phase_mutex_);
  if (phase_ != Phase::kQuit) phase_ = Phase::kIdle;
}

bool Conversation::cancelling() const {
  const std::lock_guard lock(phase_mutex_);
  return phase_ == Phase::kCancelling;
}

bool Conversation::interrupted() const {
  const std::lock_guard lock(phase_mutex_);
  return interrupted_;
}

bool Conversation::OnInterrupt() {
  const std::lock_guard lock(phase_mutex_);
  interrupted_ = true;
  if (phase_ == Phase::kAnswering) {
    phase_ = Phase::kCancelling;
    stream_.CancelTurn();
    return false;
  }
  phase_ = Phase::kQuit;
  stream_.Abort();
  return true;
}

}  // namespace ovq
