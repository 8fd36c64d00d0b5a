// Defines Conversation: one Chat call that sends questions, streams the answers to stdout and
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

namespace ovq::clients {

// All methods except OnInterrupt must be called on one thread.
class Conversation {
 public:
  // `options` may change between two questions.
  Conversation(const Connection& connection, const ChatOptions& options, const Screen& screen);

  // Open starts the call and Ask runs one turn. Both return false when the call has ended; Close
  // then gives the reason.
  bool Open();
  bool Ask(std::string_view question);
  // PositionBeforeLastQuestion returns the session's position before the last question, if there
  // was one. DropLastQuestion undoes the question locally, after the session was rewound to that
  // position.
  std::optional<uint64_t> PositionBeforeLastQuestion() const;
  void DropLastQuestion();
  // The session as the server described it when the call opened.
  const v1::Session& session() const { return session_; }

  // Handles Ctrl-C: cancels a running turn. Returns false if no turn was running or it was already
  // cancelled.
  bool OnInterrupt();
  bool interrupted() const { return interrupted_; }          // OnInterrupt has cancelled a turn
  bool answering() const { return phase_ != Phase::kIdle; }  // any thread

  // Half-closes the call, reads the remaining messages and returns the call's final status. Call it
  // once, last.
  grpc::Status Close();
  const grpc::ClientContext& context() const { return context_; }

 private:
  enum class Phase { kIdle, kAnswering, kCancelling };
  struct TurnStats;

  void SetPhase(Phase phase);
  bool Send(const v1::ChatRequest& request);
  void SendWaitingCancel();
  // Sends the whole conversation so far with one more question (--messages).
  bool SendMessages(std::string_view question);
  bool SendPart(std::string_view part, bool more);
  // Sends all parts but the last. Returns false if the call or the turn ended meanwhile.
  bool SendLeadingParts(const std::vector<std::string_view>& parts, TurnStats& stats);
  bool StreamAnswer(TurnStats& stats);
  void PrintChunk(const v1::TokenChunk& chunk);
  // Ends the answer's last line, so that what is reported begins a line, also an answer cut off.
  void EndLine();
  void Report(const TurnStats& stats);

  const ChatOptions& options_;
  const Screen& screen_;
  const bool stdout_is_terminal_;
  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ChatRequest, v1::ChatResponse>> call_;
  std::mutex write_mutex_;  // gRPC allows one write at a time, concurrent with one read
  std::atomic<bool> cancel_waiting_ = false;

  v1::Session session_;
  v1::Conversation messages_;  // with --messages: the messages that the session holds; `answer_` is
                               // the last answer
  std::string answer_;
  uint64_t position_ = 0;
  struct Question {
    uint64_t position;  // the session's position before the question
    int n_messages;     // number of entries of messages_
    std::string answer;
  };
  std::vector<Question> questions_;
  bool call_ended_ = false;
  char last_byte_ = 0;      // last byte of the answer so far
  std::string token_list_;  // output of --logprobs
  std::mutex phase_mutex_;  // held while the phase is changed and acted upon
  std::atomic<Phase> phase_ = Phase::kIdle;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace ovq::clients
