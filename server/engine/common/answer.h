// Turns drawn tokens into the text of an answer: incremental detokenization, stop strings, and the
// progress of one of a request's n answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "model/logits_reader.h"
#include "model/ngram_drafter.h"
#include "model/sampler.h"
#include "model/tokenizer.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/form_progress.h"
#include "server/engine/common/session.h"

namespace ovq::engine {

// Finds stop strings in a text that comes in parts, and holds back text that may begin one. The
// result does not depend on how the text is cut: the match that ends first wins, and the longest of
// several that end together. A byte costs a few operations per string: each string is followed by
// its own failure links (Knuth, Morris and Pratt).
class StopMatcher {
 public:
  StopMatcher(std::vector<std::string> strings, bool include_stop_text);
  struct Result {
    std::string text;  // text that may be sent now
    std::optional<std::string> matched;
  };
  Result Push(std::string_view text);  // must not be called after a match
  std::string Flush();                 // the text held back, when no more text follows

 private:
  // One stop string, and the length of its longest beginning that the text ends with.
  struct Watch {
    explicit Watch(std::string string);
    bool Follow(char byte);  // true: the text ends with all of it

    std::string string;
    // [i]: length of the longest proper suffix of the first i + 1 bytes that is also a prefix.
    std::vector<uint16_t> links;
    size_t matched = 0;
  };

  std::vector<Watch> watches_;
  const bool include_stop_text_;
  std::string held_;
};

// One of the n answers of a generate request while it is drawn. Engine thread only.
class RunningAnswer {
 public:
  // request and model must outlive the answer. seed: of this answer alone.
  RunningAnswer(const GenerateRequest& request, int index, uint64_t seed, const EngineModel& model);

  // Counts tokens that the session consumed before this request. Call it before ObservePrompt.
  void ObserveEarlier(std::span<const int32_t> tokens);
  // Counts the prompt. Call it once, before the first AddDraw.
  void ObservePrompt(std::span<const int32_t> tokens);

  // Keeps the answer to its request's constraint. Call it before anything else. earlier: an answer
  // that it goes on with; null for a new one. forces: tokens without a choice are forced. The error
  // says that nothing can follow.
  absl::Status Constrain(MatcherCache& matchers, const UnfinishedAnswer* earlier, bool forces);

  // Turns drafting on. Call it before any Observe*, so that the drafter knows all tokens.
  void Speculate() { drafter_.emplace(); }
  // The tokens that follow the pending one without a choice. They count as observed.
  std::span<const int32_t> forced() const;
  // Drafts at most `most` tokens to follow the pending and the forced ones, within max_tokens and
  // the constraint. Empty without Speculate.
  model::DraftTokens Propose(int64_t most);

  // The pending token and the first n forced ones; the probabilities are 1 for these, then those
  // given. Valid until the next call.
  struct Following {
    std::span<const int32_t> tokens;
    std::span<const float> probabilities;
  };
  Following Follow(int64_t n_forced, std::span<const float> drafted);

  // Describes the draw of the token behind the forced ones and the drafted ones of the last
  // Propose. It points into the answer and is valid until AddDraw.
  model::DrawRequest NextDraw();
  // Lists the tokens that are forced behind all that was added. Call it once an iteration's tokens
  // are, if the answer goes on.
  void Force();
  // Appends the first n forced tokens to the answer, none of which is its last.
  void AddForced(int64_t n, StreamEvent& event);
  // Appends a drawn token to the answer; no forced ones are left. Adds the token and the text that
  // became certain to the event's chunk, and `finished` (the caller fills in usage) if it was the
  // last token.
  void AddDraw(model::Sampled drawn, StreamEvent& event);
  // Not OK once the constraint cannot be kept any more: the answer ends with this error.
  const absl::Status& status() const { return status_; }
  // FormProgress::token_time; 0 without a constraint.
  absl::Duration form_time() const { return form_ ? form_->token_time() : absl::ZeroDuration(); }
  // The answer that a later call of the session may go on with.
  std::optional<UnfinishedAnswer> Unfinished() const;

  int index() const { return index_; }
  int64_t generated() const { return generated_; }
  int64_t reasoning() const { return reasoning_; }  // tokens

  std::shared_ptr<Sequence> sequence;  // the sequence it continues; null during prefill
  bool done = false;                   // its Finished event has been sent
  SteadyTime first_token, last_token;  // times of these draws
  int64_t drafted = 0, accepted = 0;   // tokens, for Usage

 private:
  static constexpr size_t kMostForced = 64;  // listed at once

  void Observe(std::span<const int32_t> tokens);
  // Counts a token for the draws that follow.
  void ObserveOwn(int32_t token);
  // Adds the token, which the sampler has observed, to the event.
  void Emit(model::Sampled drawn, StreamEvent& event);
  bool IsEnd(int32_t token) const;  // it ends the answer wherever it stands
  FormBans bans() const;
  // Moves the form on by a drawn token.
  void AdvanceForm(int32_t token);
  // Appends the token's text; sets `finished` if the token ends the answer.
  void Append(int32_t token, std::string& text, std::optional<Finished>& finished);
  // Parses the text of the next token; sets `finished` if the answer ends with a call.
  void Parse(const std::string& text, std::vector<answers::AnswerPart>& parts,
             std::optional<Finished>& finished);

  const GenerateRequest& request_;
  const int index_;
  const std::vector<int32_t>& eos_;
  const std::set<int32_t>& markers_;
  std::vector<int32_t> banned_early_;   // not drawn before min_tokens
  std::vector<int32_t> banned_always_;  // not drawn after that either (ignore_eos)
  std::vector<int32_t> tail_;  // the last tokens before the answer: a character may begin in them
  model::Sampler sampler_;
  std::optional<model::NgramDrafter> drafter_;
  std::optional<model::Detokenizer> detokenizer_;  // none if the tokenizer has no text
  StopMatcher matcher_;
  std::optional<answers::AnswerParser> parser_;  // if parts are asked for
  std::vector<answers::AnswerPart> begun_;  // parts of what the prompt wrote, still to be given
  bool one_call_ended_ = false;             // nothing of what follows is given
  std::optional<FormProgress> form_;        // with a constraint
  bool forces_ = false;
  std::vector<int32_t> forced_;  // observed, and passed by form_
  std::vector<int32_t> following_;
  std::vector<float> following_probabilities_;
  bool form_ended_ = false;  // the last drawn token has ended the form
  bool ended_ = false;       // by itself
  absl::Status status_;
  // The tokens of a session's constrained answer, with those of earlier calls.
  std::vector<int32_t> tokens_;
  int64_t generated_ = 0, reasoning_ = 0;
};

}  // namespace ovq::engine
