// The turns of one conversation: sends a question, streams its answer to stdout, reports on stderr.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clients/chat/chat_stream.h"
#include "clients/chat/options.h"

namespace ovq {

struct TurnStats {
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::optional<double> first_token_seconds;  // as seen here, from the question's first byte
  uint64_t state_bytes = 0;
  uint64_t position = 0;
};
// "[prompt 12 tokens, 850.1 tokens/s | generated ... | position 46 | length]"
std::string FormatStats(const TurnStats& stats);

// All methods but OnInterrupt belong to one thread.
class Conversation {
 public:
  Conversation(const Connection& connection, const ChatOptions& options);

  // Both: false when the call has ended; Close tells why.
  bool Open();
  bool Ask(std::string_view question);
  const v1::Session& session() const { return session_; }  // as it was opened

  // Ctrl-C: cancels a running turn. True if none was, or it was cancelled before: the call is
  // ended.
  bool OnInterrupt();
  bool interrupted() const;  // some turn was cancelled, or the call ended, by OnInterrupt

  grpc::Status Close() { return stream_.Close(); }
  std::string RequestId() const { return stream_.RequestId(); }  // after Close

 private:
  enum class Phase { kIdle, kAnswering, kCancelling, kQuit };
  using Clock = std::chrono::steady_clock;

  bool BeginTurn();
  void EndTurn();
  bool cancelling() const;
  bool SendPart(std::string_view part, bool more);
  // Sends all parts but the last. False when the call or the turn has ended with them.
  bool SendLeadingParts(const std::vector<std::string_view>& parts, TurnStats& stats);
  bool StreamAnswer(Clock::time_point asked, TurnStats& stats);
  void PrintChunk(const v1::TokenChunk& chunk);
  void Report(const TurnStats& stats);

  const ChatOptions& options_;
  const bool stdout_is_terminal_;
  ChatStream stream_;
  v1::Session session_;
  uint64_t position_ = 0;
  bool call_ended_ = false;
  char last_byte_ = 0;      // of the answer
  std::string token_list_;  // --logprobs
  mutable std::mutex phase_mutex_;
  Phase phase_ = Phase::kIdle;
  bool interrupted_ = false;
};

}  // namespace ovq
