#include "clients/chat/conversation.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace ovq::clients {
namespace {

using Clock = std::chrono::steady_clock;

// Largest part of a prompt that one message carries, far below the 4 MiB that a gRPC server
// accepts.
constexpr size_t kMaxPartBytes = size_t{64} << 10;

double SecondsSince(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

std::string Rate(uint64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "";
  return absl::StrFormat(", %.1f tokens/s", static_cast<double>(tokens) / seconds);
}

// Splits the text into parts of at most kMaxPartBytes, never inside a character. A part ends after
// the last newline of its last quarter if there is one, so that few tokens are cut in two. An empty
// text gives one empty part.
std::vector<std::string_view> SplitPrompt(std::string_view text) {
  std::vector<std::string_view> parts;
  while (text.size() > kMaxPartBytes) {
    size_t cut = kMaxPartBytes;
    // a UTF-8 continuation byte
    while ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    const size_t line_end = text.substr(0, cut).rfind('\n');
    if (line_end != std::string_view::npos && line_end + 1 >= kMaxPartBytes - kMaxPartBytes / 4) {
      cut = line_end + 1;
    }
    parts.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  parts.push_back(text);
  return parts;
}

}  // namespace

struct Conversation::TurnStats {
  Clock::time_point asked = Clock::now();
  v1::Finished finished;       // of the last part
  uint64_t prompt_tokens = 0;  // of all parts
  double prefill_seconds = 0;
  std::optional<double> first_token_seconds;  // as the client measures it, from the first byte of
                                              // the question

  // "[prompt 12 tokens, 850.1 tokens/s | generated ... | position 46 | length]"
  std::string Text(uint64_t position) const {
    const std::string first = first_token_seconds
                                  ? absl::StrFormat("%.0f ms", *first_token_seconds * 1e3)
                                  : std::string("-");
    const v1::Usage& usage = finished.usage();
    // The first token is sampled from the prompt's last logits: decoding begins with the second.
    const uint64_t generated = usage.generated_tokens();
    const uint64_t decoded = generated > 0 ? generated - 1 : 0;
    const std::string guessed = usage.drafted_tokens() == 0
                                    ? ""
                                    : absl::StrCat(" (", usage.accepted_tokens(), " of ",
                                                   usage.drafted_tokens(), " guessed)");
    const std::string& name = v1::FinishReason_Name(finished.reason());
    return absl::StrCat("[prompt ", prompt_tokens, " tokens", Rate(prompt_tokens, prefill_seconds),
                        " | generated ", generated, " tokens", guessed,
                        Rate(decoded, Seconds(usage.decode_time())), " | TTFT ", first, " | state ",
                        HumanBytes(usage.state_bytes()), " | position ", position, " | ",
                        absl::AsciiStrToLower(absl::StripPrefix(name, "FINISH_REASON_")), "]");
  }
};

Conversation::Conversation(const Connection& connection, const ChatOptions& options,
                           const Screen& screen)
    : options_(options),
      screen_(screen),
      stdout_is_terminal_(isatty(STDOUT_FILENO) != 0),
      stub_(v1::InferenceService::NewStub(connection.channel)) {
  connection.Authorize(context_, options.open.has_session_id()
                                     ? SessionKeyFromId(options.open.session_id())
                                     : NewSessionKey());
  call_ = stub_->Chat(&context_);
}

bool Conversation::Open() {
  v1::ChatRequest request;
  *request.mutable_open() = options_.open;
  v1::ChatResponse response;
  if (!Send(request) || !call_->Read(&response)) return false;
  session_ = response.opened().session();
  position_ = session_.position();
  return true;
}

std::optional<uint64_t> Conversation::PositionBeforeLastQuestion() const {
  if (questions_.empty()) return std::nullopt;
  return questions_.back().position;
}

void Conversation::DropLastQuestion() {
  const Question& last = questions_.back();
  position_ = last.position;
  answer_ = last.answer;
  messages_.mutable_messages()->DeleteSubrange(last.n_messages,
                                               messages_.messages_size() - last.n_messages);
  if (messages_.messages().empty()) messages_.clear_known();
  questions_.pop_back();
}

bool Conversation::Ask(std::string_view question) {
  SetPhase(Phase::kAnswering);
  questions_.push_back({position_, messages_.messages_size(), answer_});
  TurnStats stats;
  token_list_.clear();
  last_byte_ = '\n';
  if (options_.messages) {
    call_ended_ = !SendMessages(question) || !StreamAnswer(stats);
  } else {
    const std::vector<std::string_view> parts = SplitPrompt(question);
    if (SendLeadingParts(parts, stats)) {
      call_ended_ = !SendPart(parts.back(), false) || !StreamAnswer(stats);
    }
  }
  SetPhase(Phase::kIdle);
  EndLine();
  if (!call_ended_) Report(stats);
  return !call_ended_;
}

bool Conversation::Send(const v1::ChatRequest& request) {
  bool sent = false;
  {
    const std::lock_guard lock(write_mutex_);
    sent = call_->Write(request);
  }
  SendWaitingCancel();
  return sent;
}

// Never blocks: if another thread holds the lock in a stuck Send, that thread sends the cancel
// afterwards.
void Conversation::SendWaitingCancel() {
  // The holder of the lock looks again after it has released the lock.
  while (cancel_waiting_) {
    const std::unique_lock lock(write_mutex_, std::try_to_lock);
    if (!lock) return;
    if (!cancel_waiting_.exchange(false)) continue;
    v1::ChatRequest request;
    request.mutable_cancel();
    call_->Write(request);
  }
}

grpc::Status Conversation::Close() {
  {
    const std::lock_guard lock(write_mutex_);
    call_->WritesDone();
  }
  v1::ChatResponse ignored;
  while (call_->Read(&ignored)) {
  }
  return call_->Finish();
}

bool Conversation::SendMessages(std::string_view question) {
  const auto add = [this](const char* role, std::string_view content) {
    v1::ChatMessage& message = *messages_.add_messages();
    message.set_role(role);
    message.set_content(std::string(content));
  };
  if (messages_.messages_size() > 0) {
    add("assistant", answer_);
    messages_.set_known(messages_.messages_size());
  } else if (options_.system) {
    add("system", *options_.system);
  }
  add("user", question);
  answer_.clear();
  v1::ChatRequest request;
  *request.mutable_turn() = options_.turn;
  *request.mutable_turn()->mutable_prompt()->mutable_conversation() = messages_;
  return Send(request);
}

bool Conversation::SendPart(std::string_view part, bool more) {
  v1::ChatRequest request;
  v1::ChatTurn& turn = *request.mutable_turn();
  if (!more) turn = options_.turn;
  turn.mutable_prompt()->set_text(std::string(part));
  turn.set_more(more);
  return Send(request);
}

bool Conversation::SendLeadingParts(const std::vector<std::string_view>& parts, TurnStats& stats) {
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    v1::ChatResponse response;
    if (!SendPart(parts[i], true) || !call_->Read(&response)) {
      call_ended_ = true;
      return false;
    }
    const uint64_t position = response.has_finished() ? response.finished().usage().position()
                                                      : response.absorbed().position();
    stats.prompt_tokens += position - position_;
    position_ = position;
    stats.prefill_seconds = SecondsSince(stats.asked);
    if (response.has_finished() || phase_ == Phase::kCancelling) {
      stats.finished = response.finished();
      stats.finished.set_reason(v1::FINISH_REASON_CANCELLED);
      return false;
    }
  }
  return true;
}

bool Conversation::StreamAnswer(TurnStats& stats) {
  if (phase_ == Phase::kCancelling) {
    // The server forgets a cancel that came before the end of the question.
    v1::ChatRequest cancel;
    cancel.mutable_cancel();
    if (!Send(cancel)) return false;
  }
  v1::ChatResponse response;
  while (call_->Read(&response)) {
    if (response.has_chunk()) {
      if (!stats.first_token_seconds && screen_.terminal && options_.messages) {
        screen_.Show(screen_.Bold("assistant> "));
      }
      if (!stats.first_token_seconds) stats.first_token_seconds = SecondsSince(stats.asked);
      PrintChunk(response.chunk());
    } else if (response.has_finished()) {
      stats.finished = response.finished();
      const v1::Usage& usage = stats.finished.usage();
      stats.prompt_tokens += usage.prompt_tokens();
      stats.prefill_seconds += Seconds(usage.prefill_time());
      position_ = usage.position();
      return true;
    }
  }
  return false;
}

void Conversation::PrintChunk(const v1::TokenChunk& chunk) {
  if (options_.messages) answer_ += chunk.text();
  if (!chunk.text().empty()) {
    PrintFlushed(stdout, stdout_is_terminal_ ? Printable(chunk.text()) : chunk.text());
    last_byte_ = chunk.text().back();
  }
  for (int i = 0; i < chunk.logprobs_size() && i < chunk.token_ids_size(); ++i) {
    absl::StrAppendFormat(&token_list_, "%u\t%.6f\n", chunk.token_ids(i), chunk.logprobs(i));
  }
}

void Conversation::EndLine() {
  // A single answer is written byte for byte to a file or pipe; an answer in a conversation ends
  // with a newline.
  const bool end_line = stdout_is_terminal_ || options_.interactive;
  if (end_line && last_byte_ != '\n') PrintFlushed(stdout, "\n");
}

void Conversation::Report(const TurnStats& stats) {
  // On a terminal, an empty line separates turns.
  const char* const gap = screen_.terminal && options_.interactive ? "\n\n" : "\n";
  screen_.Show(absl::StrCat(token_list_, screen_.Dim(stats.Text(position_)), gap));
}

void Conversation::SetPhase(Phase phase) {
  const std::lock_guard lock(phase_mutex_);
  phase_ = phase;
}

bool Conversation::OnInterrupt() {
  const std::lock_guard lock(phase_mutex_);
  if (phase_ != Phase::kAnswering) return false;
  phase_ = Phase::kCancelling;
  interrupted_ = cancel_waiting_ = true;
  SendWaitingCancel();
  return true;
}

}  // namespace ovq::clients
