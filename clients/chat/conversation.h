// One conversation, which is one Chat call: sends questions, streams their answers to stdout,
// reports on stderr.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clients/channel/channel.h"
#include "clients/chat/options.h"
#include "clients/chat/terminal.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq {

// All methods but OnInterrupt belong to one thread.
class Conversation {
 public:
  // The options may change between two questions.
  Conversation(const Connection& connection, const ChatOptions& options, const Screen& screen);

  // Both: false when the call has ended; Close tells why.
  bool Open();
  bool Ask(std::string_view question);
  // Where the session stood before the last question, if one was asked. DropLastQuestion: it is
  // there again.
  std::optional<uint64_t> PositionBeforeLastQuestion() const;
  void DropLastQuestion();
  const v1::Session& session() const { return session_; }  // as it was opened

  // Ctrl-C: cancels a running turn. True if none was, or it was cancelled before: the call is
  // ended.
  bool OnInterrupt();
  // Some turn was cancelled, or the call ended, by OnInterrupt.
  bool interrupted() const { return interrupted_; }

  // Says that no turn follows, reads what is left and returns how the call ended. Call once, last.
  grpc::Status Close();
  std::string RequestId() const;  // after Close

 private:
  enum class Phase { kIdle, kAnswering, kCancelling, kQuit };
  struct TurnStats;

  bool BeginTurn();
  void EndTurn();
  bool Send(const v1::ChatRequest& request);
  void SendWaitingCancel();
  // The conversation so far with one more question.
  bool SendMessages(std::string_view question);
  bool SendPart(std::string_view part, bool more);
  // Sends all parts but the last. False when the call or the turn has ended with them.
  bool SendLeadingParts(const std::vector<std::string_view>& parts, TurnStats& stats);
  bool StreamAnswer(TurnStats& stats);
  void PrintChunk(const v1::TokenChunk& chunk);
  void Report(const TurnStats& stats);

  const ChatOptions& options_;
  const Screen& screen_;
  const bool stdout_is_terminal_;
  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ChatRequest, v1::ChatResponse>> call_;
  std::mutex write_mutex_;  // gRPC allows one write at a time beside one read
  std::atomic<bool> cancel_waiting_ = false;

  v1::Session session_;
  v1::Conversation messages_;  // --messages: what the session holds, in answer_ its last answer
  std::string answer_;
  uint64_t position_ = 0;
  struct Question {
    uint64_t position;  // before the question
    int n_messages;     // of messages_
    std::string answer;
  };
  std::vector<Question> questions_;
  bool call_ended_ = false;
  char last_byte_ = 0;      // of the answer
  std::string token_list_;  // --logprobs
  std::mutex phase_mutex_;  // for who changes the phase and acts on it
  std::atomic<Phase> phase_ = Phase::kIdle;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace ovq
