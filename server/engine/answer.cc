#include "server/engine/answer.h"

#include <algorithm>
#include <utility>

namespace ovq {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

SamplingParams WithSeed(SamplingParams params, uint64_t seed) {
  params.seed = seed;
  return params;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> strings, bool include_stop_text)
    : strings_(std::move(strings)), include_stop_text_(include_stop_text) {}

size_t StopMatcher::HeldBack() const {
  size_t longest = 0;
  const std::string_view held = held_;
  for (const std::string& stop : strings_) {
    for (size_t n = std::min(held.size(), stop.size() - 1); n > longest; --n) {
      if (held.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  held_ += text;
  const std::string* matched = nullptr;
  size_t begin = 0, end = 0;
  for (const std::string& stop : strings_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t ends = at + stop.size();
    if (matched == nullptr || ends < end || (ends == end && at < begin)) {
      matched = &stop;
      begin = at;
      end = ends;
    }
  }
  Result result;
  if (matched != nullptr) {
    result.text = held_.substr(0, include_stop_text_ ? end : begin);
    result.matched = *matched;
    held_.clear();
    return result;
  }
  const size_t ready = held_.size() - HeldBack();
  result.text = held_.substr(0, ready);
  held_.erase(0, ready);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

Completion::Completion(const GenerateRequest& request, int index, uint64_t seed,
                       const std::vector<int32_t>& eos, int64_t vocab_size,
                       const Tokenizer* tokenizer)
    : request_(request),
      index_(index),
      eos_(eos),
      banned_early_(eos),
      sampler_(WithSeed(request.sampling, seed), vocab_size),
      matcher_(request.stop.strings, request.stop.include_stop_text) {
  const StopConditions& stop = request.stop;
  banned_early_.insert(banned_early_.end(), stop.token_ids.begin(), stop.token_ids.end());
  if (stop.ignore_eos) banned_always_ = eos;
  if (tokenizer != nullptr && tokenizer->has_text())
    detokenizer_.emplace(tokenizer, /*at_start=*/false);
}

void Completion::ObservePrompt(std::span<const int32_t> tokens) {
  sampler_.ObservePrompt(tokens);
  // A character has at most four bytes, so no more tokens can have begun it.
  constexpr size_t kTail = 4;
  if (detokenizer_) detokenizer_->Precede(tokens.last(std::min(tokens.size(), kTail)));
}

void Completion::WantDraw(StepReader& reader, int64_t row, int64_t position) {
  const bool early = generated_ < request_.stop.min_tokens;
  reader.WantDraw(sampler_, row, position, request_.output.top_logprobs,
                  early ? banned_early_ : banned_always_);
}

StreamEvent Completion::Drawn(Sampled drawn) {
  const OutputOptions& output = request_.output;
  ++generated_;
  StreamEvent event;
  TokenChunk& chunk = event.chunk.emplace();
  chunk.index = index_;
  chunk.token_ids.push_back(drawn.token_id);
  if (output.logprobs) chunk.logprobs.push_back(drawn.logprob);
  if (output.top_logprobs > 0) chunk.top.push_back(std::move(drawn.top));
  Append(drawn.token_id, chunk.text, event.finished);
  if (event.finished) event.finished->index = index_;
  return event;
}

void Completion::Append(int32_t token, std::string& text, std::optional<Finished>& finished) {
  const StopConditions& stop = request_.stop;
  const bool is_eos = Contains(eos_, token);
  const bool is_stop = is_eos || Contains(stop.token_ids, token);
  if (is_stop) {
    finished.emplace().matched_token_id = token;
  } else if (generated_ >= stop.max_tokens) {
    finished.emplace().reason = FinishReason::kLength;
  }
  if (!detokenizer_) return;

  std::string decoded;
  if (!is_stop || (stop.include_stop_text && !is_eos)) decoded = detokenizer_->Push(token);
  if (finished) decoded += detokenizer_->Finish();
  StopMatcher::Result result = matcher_.Push(decoded);
  text = std::move(result.text);
  if (result.matched) {
    finished.emplace().matched_stop = *std::move(result.matched);  // before any token or length
  } else if (finished) {
    text += matcher_.Flush();
  }
}

}  // namespace ovq
