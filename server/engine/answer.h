// From drawn tokens to the text a reader gets: incremental text, stop strings, and one completion's
// progress through them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "model/logits_reader.h"
#include "model/ngram_drafter.h"
#include "model/sampler.h"
#include "model/tokenizer.h"
#include "server/engine/engine_api.h"
#include "server/engine/session.h"

namespace ovq {

// Finds stop strings in a text that comes in parts. Text that may be the beginning of a stop
// string is held back. How the text is cut changes nothing: the match that ends first
// wins, of several that end together the longest. A byte costs a few operations a string, whatever
// the strings are: each is followed by its own failure links (Knuth, Morris and Pratt).
class StopMatcher {
 public:
  StopMatcher(std::vector<std::string> strings, bool include_stop_text);
  struct Result {
    std::string text;  // may be sent now
    std::optional<std::string> matched;
  };
  Result Push(std::string_view text);  // not called again after a match
  std::string Flush();                 // what was held back, when no more text follows

 private:
  // One string, and how much of its beginning the text ends with.
  struct Watch {
    explicit Watch(std::string string);
    bool Follow(char byte);  // true: the text ends with all of it

    std::string string;
    std::vector<uint16_t> links;  // [i] of the first i + 1 bytes: the longest end that begins it
    size_t matched = 0;
  };

  std::vector<Watch> watches_;
  const bool include_stop_text_;
  std::string held_;
};

// One completion of a request. Engine thread only.
class Completion {
 public:
  // eos, tokenizer (may be null) and request outlive it. seed: this completion's own.
  Completion(const GenerateRequest& request, int index, uint64_t seed,
             const std::vector<int32_t>& eos, int64_t vocab_size, const Tokenizer* tokenizer);

  // What the session has said and read before.
  void ObserveEarlier(std::span<const int32_t> tokens) { Observe(tokens); }
  // Once, before the first Drawn.
  void ObservePrompt(std::span<const int32_t> tokens);

  // From now on it looks for what may follow in the tokens it is told of, before any of them.
  void Speculate() { drafter_.emplace(); }
  // Of no more tokens than it still may have after the next one; empty without Speculate.
  DraftTokens Propose(int64_t most);

  // Wants the token at `position`, drawn from a row of the step's logits, and the one after each of
  // the tokens that are only guessed to follow, from the rows after it. The completion stays as it
  // is until a token is Drawn.
  void WantDraws(LogitsReader& reader, int64_t row, int64_t position,
                 std::span<const int32_t> guessed);
  // Takes the next of those that were wanted, as long as the guesses are right: adds the token and
  // the text that became certain to the event's chunk, and `finished` (usage left to the caller) if
  // it was the last.
  void Drawn(Sampled drawn, StreamEvent& event);

  int index() const { return index_; }
  int64_t generated() const { return generated_; }

  std::shared_ptr<Sequence> sequence;  // what it continues; null until the prompt is consumed
  bool done = false;                   // its Finished is sent
  SteadyTime first_token, last_token;  // when they were drawn
  int64_t drafted = 0, accepted = 0;   // Usage

 private:
  void Observe(std::span<const int32_t> tokens);
  // Text of the token and whether it ends the answer.
  void Append(int32_t token, std::string& text, std::optional<Finished>& finished);

  const GenerateRequest& request_;
  const int index_;
  const std::vector<int32_t>& eos_;
  std::vector<int32_t> banned_early_;   // before min_tokens
  std::vector<int32_t> banned_always_;  // under ignore_eos
  Sampler sampler_;
  std::vector<Sampler> ahead_;  // as it would be after each of the guessed tokens
  size_t n_taken_ = 0;          // of the draws wanted last
  std::optional<NgramDrafter> drafter_;
  std::optional<Detokenizer> detokenizer_;  // none without text
  StopMatcher matcher_;
  int64_t generated_ = 0;
};

}  // namespace ovq
